"""Random keys: streams that count the keys they give, and what transforms do to the streams inside models."""
