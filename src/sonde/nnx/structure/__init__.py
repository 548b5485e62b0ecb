"""The structure of models: walking over it, taking it apart, describing it, and building models from it."""
