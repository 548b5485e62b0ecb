"""The exceptions of Sonde. A traceback ends with what to do, and with the command that shows the page about the error.

SondeError
├── CaptureError          a site is in a place that cannot be captured
├── NoSuchSiteError       a pattern matches no site               (also a LookupError)
├── EditError             an edit does not fit the site           (also a ValueError)
├── InsideError           a function cannot be looked into        (also a ValueError)
├── LayerInputError       the input of a layer does not fit it  (also a ValueError and TypeError)
├── LinenError            the root of 28 errors of `sonde.linen`, with the names of `flax.errors`
├── ModelFileError        a checkpoint cannot be read or written  (also a ValueError)
├── ScopeError            scopes were not left in the reverse order of entering
├── SiteNameError         a name that cannot name a site          (also a TypeError or ValueError)
├── StoreError            a store of activations cannot be used, or does not fit
└── TraceContextError     an object was changed at a trace level other than the one it was made at

A wrong argument raises Python's own `TypeError` or `ValueError`.
"""

from __future__ import annotations


class SondeError(Exception):
    """The root of the tree: catch it to catch every error below.

    Attributes:
        page: the documentation page about this error, relative to the root of the repository.
        todo: what to do, in words.
    """

    page = "docs/reference.md"
    todo = "read the message; the page says more."

    def __init_subclass__(cls, **kwargs: object):
        super().__init_subclass__(**kwargs)
        if SondeError in cls.__bases__ and cls.__module__ == __name__:
            cls.page = f"docs/errors/{cls.__name__}.md"

    def __init__(self, *args: object):
        super().__init__(*args)
        self.add_note(self.advice)

    @property
    def advice(self) -> str:
        """The last line of the traceback: what to do, and how to read the page about this error."""
        name = self.page.rpartition("/")[2].removesuffix(".md")
        more = "" if name == "reference" else f" More: `sonde explain {name}`."
        return f"What to do: {self.todo}{more}"


class CaptureError(SondeError):
    """A site is in a place that cannot be captured. Names the site, the line of the user's code, and the reason."""

    todo = "mark the value before or after that place, or capture the function around it."


class NoSuchSiteError(SondeError, LookupError):
    """A pattern matches no site of the program. Lists the nearest names."""

    todo = "list the sites, `print(sonde.sites(f)(x))`, and use one of their paths or a pattern such as '**/h'."


class EditError(SondeError, ValueError):
    """An edit or perturbation does not fit the site: its structure, shape or dtype. Says what was expected and got."""

    todo = "return what has the shape and dtype that the site has; `sonde.sites(f)(x)` lists them."


class InsideError(SondeError, ValueError):
    """Something that `inside=` names cannot be looked into. Names it, the file and line, and the reason."""

    todo = "name the function, class, module or model that the program calls, with its source there to read."


class LayerInputError(SondeError, ValueError, TypeError):
    """An array or option given to a layer does not fit it. Names the argument, what was expected and what was given.

    The arithmetic in `sonde.ops` raises it without knowing its caller; the layer fills in `place`
    (its class and, where known, its path), which then leads the text. Also a `ValueError` and a `TypeError`,
    because Flax raises either of them for the same mistake.

    Attributes:
        place: the layer, such as `Linear at decoder/head`, or None when a plain function was called.
        problem: the rest of the text.
    """

    todo = "give the layer what the message expects, or make the layer for what it was given."

    def __init__(self, problem: str, *, place: str | None = None):
        super().__init__(problem)
        self.problem = problem
        self.place = place

    def __str__(self) -> str:
        return self.problem if self.place is None else f"{self.place}: {self.problem}"


class ModelFileError(SondeError, ValueError):
    """A checkpoint cannot be read: unsupported architecture, tensors missing or misshapen, a file truncated.

    The message names what is wrong.
    """

    todo = "check that the files are complete and that the page lists the architecture."


class ScopeError(SondeError):
    """Scopes were not left in the reverse order of entering, as with interleaved generators or asyncio tasks."""

    todo = "open scopes with `with sonde.scope(name):`, and leave them before a yield or an await."


class SiteNameError(SondeError, TypeError, ValueError):
    """The name of a site or scope is empty, not a string, or contains an empty part."""

    todo = "give sow and scope a name such as 'attn/scores', after the value: sonde.sow(value, name)."


class StoreError(SondeError):
    """A store of activations cannot be written or read, or was started by a different call. Says what differs."""

    todo = "name the folder of a store, or a new one to write to; a store is continued by the call that started it."


class LinenError(SondeError):
    """The base of the errors of `sonde.linen`; its subclasses have the names of `flax.errors`."""

    todo = "compare the module and the variables with what the message says."


class ApplyModuleInvalidMethodError(LinenError, TypeError):
    """The `method` given to `init`, `apply` and the like is neither a function nor the name of a method."""


class ApplyScopeInvalidVariablesStructureError(LinenError):
    """The variables given to `apply` have one layer too many, as in `{"params": {"params": ...}}`."""


class ApplyScopeInvalidVariablesTypeError(LinenError):
    """The variables given to `apply` or `bind` are not a dict of collections."""


class AssignSubModuleError(LinenError):
    """A submodule is made outside `setup` and outside a method marked `@nn.compact`."""


class CallCompactUnboundModuleError(LinenError):
    """A compact method is called on a module that has no variables, outside `init` and `apply`."""


class CallSetupUnboundModuleError(LinenError):
    """`setup` is called by hand on a module that has no variables."""


class CallShareScopeOnUnboundModuleError(LinenError):
    """`nn.share_scope` is given a module that has no variables yet."""


class CallUnbindOnUnboundModuleError(LinenError):
    """`unbind` is called on a module that is not bound."""


class DescriptorAttributeError(LinenError):
    """A property of a module raises an AttributeError, which would look as if the property were missing."""


class IncorrectPostInitOverrideError(LinenError):
    """A module overrides `__post_init__` and does not call `super().__post_init__()`."""


class InvalidFilterError(LinenError):
    """A filter of collections or random streams has none of the known forms."""


class InvalidInstanceModuleError(LinenError):
    """`init`, `apply` or `bind` is called on a module class and not on an instance."""


class InvalidRngError(LinenError, ValueError):
    """A random key is needed that was not given, or what was given is not a key."""


class InvalidScopeError(LinenError):
    """A module is used after the `init` or `apply`, or the transformed function, that it belongs to has ended."""


class JaxTransformError(LinenError):
    """A variable was set inside a JAX transform to a value that does not exist outside it."""


class LazyInitError(LinenError):
    """`lazy_init` meets a variable whose initial value depends on the values of the inputs."""


class ModifyScopeVariableError(LinenError):
    """A variable is set in a collection that may not change."""


class NameInUseError(LinenError):
    """Two submodules or variables of one module ask for the same name."""


class PartitioningUnspecifiedError(LinenError):
    """A transform adds an axis to partitioned variables, but the name of the axis is unknown."""


class ReservedModuleAttributeError(LinenError):
    """A module class defines a field called `parent`."""


class ScopeCollectionNotFound(LinenError):
    """A parameter or variable is needed, but its collection is empty, or was not given."""


class ScopeParamNotFoundError(LinenError):
    """A parameter is needed that the variables given do not have."""


class ScopeParamShapeError(LinenError):
    """A given parameter has a shape other than its initializer's."""


class ScopeVariableNotFoundError(LinenError):
    """A variable is needed that does not exist and may not be created."""


class SetAttributeFrozenModuleError(LinenError, AttributeError):
    """An attribute of a module is set outside `setup`."""


class SetAttributeInModuleSetupError(LinenError):
    """`setup` sets an attribute that is a field of the module."""


class TransformTargetError(LinenError):
    """A lifted transform is applied to something that is neither a module class nor a function."""


class TransformedMethodReturnValueError(LinenError):
    """A method under a lifted transform returns a module or a variable, which cannot leave the transform."""


class TraceContextError(SondeError):
    """A Variable or Module was changed at a trace level other than the one it was made at.

    For example, a function under `jax.jit` assigns to a model it closes over: the assignment would put a
    tracer into an object that outlives the trace. Pass the object as an argument of an `nnx` transform instead.
    """

    todo = "pass the object as an argument of an `nnx` transform, and let the transform return what changed."
