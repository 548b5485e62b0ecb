"""Code that was not written for Sonde: every local variable of every Python function as a site.

`sonde.capture`, `sonde.edit`, `sonde.sites` and all tools take `inside=`, which is implemented here. The files, in
reading order:

    request             `Inside`, and the request that an `inside=` argument is; `unwrap` and `resolve` turn the
                        argument into functions in files
    syntax, source      give every function of a file a second body with marks, and compile it; `functions` and `labels`
                        are about syntax trees, `source_texts` and `same_code` about which text a code object is from
    code_swap, heap     replace a function's own code by that while a capture runs; find the function objects
    instrumented        what the marked body calls; `value_sites` turns a value into a site
    method_hooks        calls of modules as scopes with the sites `in` and `out`
    active_requests     the requests of the nested captures of a thread, and what a session has changed for them
    match_copies        recognizes copies of modules by their arrays, which `lineage` follows back
    hidden_sites,       what code that was not written for Sonde must not notice: sites in programs that it asks JAX
    same_object         for, and that a value is another object after its site
    libraries/          one file for each library: its modules, and what must be changed in it
"""
