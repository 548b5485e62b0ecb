"""New values as part of the program.

`plan` describes the edits of one run and applies them where a site is marked, so that JAX differentiates them.
`gradients` changes cotangents. `hoisting` takes the arrays out of functions, so that one compiled program serves all.
"""
