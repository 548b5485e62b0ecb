"""The paths of modules, of `sonde.nnx`, `sonde.linen` and other libraries.

In the order in which to read them: `index` says what a module is, and finds one among the attributes of another;
`places` describes where a module is; `roots` are the modules that a captured call is about; `stack` is the way from a
capture to the call that runs, and finds the place of each module that is called; `calls` makes a call a scope with its
sites. JAX uses one trace for many calls, which `boundaries` distinguishes. JAX also takes modules apart and rebuilds
them; `copies` finds what each was made from, by where its arrays come from (`array_origins`).
"""
