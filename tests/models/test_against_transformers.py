"""Models against `transformers` and `torch` themselves, and real weights. Run by `make test-transformers`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.cases import CASES, apart, inputs, outputs

from sonde import models, nnx

pytestmark = [pytest.mark.transformers, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", CASES)
def test_both_ways(name: str) -> None:
    """What `transformers` saves is read here, and what is saved here is read by `transformers`."""
    import torch
    import transformers
    from tests.models.make_oracles import run

    transformers.logging.set_verbosity_error()
    case, given = CASES[name], inputs(CASES[name])
    kind: Any = getattr(transformers, case.model)
    torch.manual_seed(1)
    theirs = kind._from_config(kind.config_class(**case.options), attn_implementation="eager").eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        theirs.save_pretrained(Path(folder, "theirs"))
        ours = models.load(Path(folder, "theirs"))
        expected, found = run(theirs, case, given).numpy(), np.asarray(nnx.jit(outputs)(ours, given))
        if "mask" in given:
            expected, found = expected[given["mask"]], found[given["mask"]]
        assert apart(found, expected) < 1e-4
        models.save(ours, Path(folder, "ours"))
        again = kind.from_pretrained(Path(folder, "ours"), attn_implementation="eager").eval()
        back = run(again, case, given).numpy()
        assert apart(back[given["mask"]] if "mask" in given else back, expected) < 1e-6


def test_smollm2_goes_on_as_transformers_does(tmp_path: Path) -> None:
    import torch
    import transformers

    model = models.load(models.path("smollm2"), layers="scan")
    models.save(model, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, torch_dtype=torch.float32).eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
    prompts = ["The capital of France is", "Once upon a time there was a", "2+2="]
    ours = models.generate(model, prompts, max_new_tokens=16)
    assert ours.texts[0].startswith(" Paris.")
    for prompt, text in zip(prompts, ours.texts):
        tokens = tokenizer(prompt, return_tensors="pt")
        assert tokens.input_ids[0].tolist() == model.tokenizer.encode(prompt)
        new = theirs.generate(**tokens, max_new_tokens=16, do_sample=False)[0, tokens.input_ids.shape[1] :]
        assert tokenizer.decode(new, skip_special_tokens=True) == text
    chat = [{"role": "user", "content": "Hi"}]
    asked = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert model.tokenizer.chat(chat) == asked
    # The file as `transformers` itself reads it.
    path = models.path("smollm2")
    read = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, torch_dtype=torch.float32
    )
    tokens = tokenizer("The Eiffel Tower is in the city of", return_tensors="pt")
    expected = read.eval()(**tokens).logits.detach().numpy()
    assert apart(nnx.jit(lambda m, t: m(t))(model, jnp.asarray(tokens.input_ids.numpy())), expected) < 1e-4


def test_minilm_has_the_likeness_that_its_page_shows() -> None:
    model = models.load(models.path("minilm"))
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "The stock market fell sharply today."]
    vectors = np.asarray(models.sentence_vectors(model, texts))
    assert abs(float(vectors[0] @ vectors[1]) - 0.7553) < 1e-3
    assert abs(float(vectors[0] @ vectors[2])) < 0.1
