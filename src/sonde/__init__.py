"""See inside any JAX program: every intermediate value and every gradient, under every transform."""
