"""The paths of modules, of `sonde.nnx`, `sonde.linen` and other libraries.

In the order in which to read them: `index` says what a module is, and finds one among the attributes of another;
`places` describes where a module is; `roots` are the modules that a captured call is about; `call_stack` has the calls
that are open, and finds the place of each module that is called; `calls` makes a call a scope with its sites. JAX uses
one trace for many calls, which `trace_variants` distinguishes. JAX also takes modules apart and rebuilds them: what a
copy was made from, the library says itself, or names what finds it (`copies`).

A capture enters this package only if a library with modules is loaded, or if a function is traced.
"""
