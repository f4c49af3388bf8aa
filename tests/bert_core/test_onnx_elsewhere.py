"""Exported folders are opened by others: Optimum, and transformers.js with onnxruntime-node.

For the latter: `npm install onnxruntime-node @huggingface/transformers`, and NODE_PATH with the
`node_modules` that this makes. Optimum wants its own `transformers`: see docs/elsewhere.md.
"""

import gettext
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from bert_core.batch import RaggedBatch
from bert_core.model.catalogue import build_model
from bert_core.onnx import outputs_of, write_onnx_folder
from bert_core.vocabulary import SPECIAL_TOKENS, Normalization, WordPieceTokenizer
from tests.bert_core.batches import small_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # others' libraries of another version
]
LANGUAGES = (
    "ar", "bn", "cs", "de", "el", "es", "fa", "fi", "fr", "he", "hi", "ja", "ko", "pl", "pt_BR",
    "ru", "tr", "uk_UA", "vi", "zh_CN",
)  # fmt: skip
_JAVASCRIPT = """
const fs = require("fs");
const ort = require("onnxruntime-node");
const { AutoTokenizer, env } = require("@huggingface/transformers");
(async () => {
  env.allowRemoteModels = false;
  const [folder, file, asked] = process.argv.slice(2);
  const texts = JSON.parse(fs.readFileSync(asked, "utf8"));
  const tokenizer = await AutoTokenizer.from_pretrained(folder);
  const ids = texts.map((text) => Array.from(tokenizer(text).input_ids.data, Number));
  const session = await ort.InferenceSession.create(folder + "/" + file);
  const rows = tokenizer(texts.slice(-8), { padding: true });
  const feeds = {};
  for (const name of session.inputNames)
    feeds[name] = new ort.Tensor("int64", rows[name].data, rows[name].dims);
  const { last_hidden_state } = await session.run(feeds);
  console.log(JSON.stringify({
    ids, dims: last_hidden_state.dims, states: Array.from(last_hidden_state.data)
  }));
})();
"""


def texts_of_languages() -> list[str]:
    """Fifty messages of each language, as Sphinx is translated."""
    sphinx = pytest.importorskip("sphinx", reason="its translations are the texts")
    texts = []
    for language in LANGUAGES:
        folder = Path(sphinx.__file__).parent / "locale" / language / "LC_MESSAGES"
        with (folder / "sphinx.mo").open("rb") as stream:
            catalog = gettext.GNUTranslations(stream)._catalog
        messages = [each for each in catalog.values() if isinstance(each, str)]
        texts += sorted(filter(str.strip, messages), key=len, reverse=True)[:50]
    assert len(texts) == 1000
    return texts  # the last ones are short


def tokenizer_of(texts, *, lowercase) -> WordPieceTokenizer:
    """One that has tokens for every character and for the beginnings of many words."""
    normalization = Normalization(lowercase=lowercase)
    bare = WordPieceTokenizer([*SPECIAL_TOKENS], normalization)
    words = {
        word
        for text in texts
        for word, _ in bare._tokenizer.pre_tokenizer.pre_tokenize_str(
            bare._tokenizer.normalizer.normalize_str(text)
        )
    }
    characters = sorted({character for word in words for character in word})
    starts = sorted({word[:4] for word in words if len(word) > 1})
    tokens = [*SPECIAL_TOKENS, *characters, *starts, *(f"##{each}" for each in characters)]
    return WordPieceTokenizer(list(dict.fromkeys(tokens)), normalization)


def folder_of(head, tokenizer, folder, **settings):
    torch.manual_seed(0)
    config = small_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=128)
    model = build_model(head, config, **settings).eval()
    folder.mkdir()
    write_onnx_folder(folder, model, tokenizer)
    return model


def ragged(tokenizer, texts) -> RaggedBatch:
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    return RaggedBatch.from_sequences(
        [[cls, *ids[:126], sep] for ids in tokenizer.encode_batch(texts)]
    )


@pytest.mark.parametrize("lowercase", [True, False])
def test_javascript_gives_the_same_ids_and_the_same_vectors(tmp_path, lowercase):
    pytest.importorskip("onnxscript", reason="pip install 'bertsmith[onnx]'")
    packages = "require('onnxruntime-node'); require('@huggingface/transformers')"
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", packages], capture_output=True).returncode:
        pytest.skip("node, onnxruntime-node or @huggingface/transformers is absent: docs/elsewhere")
    texts = texts_of_languages()
    tokenizer = tokenizer_of(texts, lowercase=lowercase)
    model = folder_of("encoder", tokenizer, tmp_path / "model")
    from onnxruntime.quantization import quantize_dynamic  # as docs/elsewhere.md does it

    quantize_dynamic(tmp_path / "model/model.onnx", tmp_path / "model/model_quantized.onnx")
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    (tmp_path / "ask.cjs").write_text(_JAVASCRIPT)
    found = {}
    for file in ("model.onnx", "model_quantized.onnx"):
        command = [node, "ask.cjs", str(tmp_path / "model"), file, "texts.json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[file] = json.loads(done.stdout.splitlines()[-1])
    ids = tokenizer.encode_batch(texts)
    expected = [[tokenizer.cls_id, *each, tokenizer.sep_id] for each in ids]
    assert found["model.onnx"]["ids"] == expected
    unknown = sum(each.count(tokenizer.unk_id) for each in ids)
    assert unknown < 0.01 * sum(map(len, ids))
    tokens = ragged(tokenizer, texts[-8:])
    with torch.inference_mode():
        expected = outputs_of(model, tokens)["last_hidden_state"].numpy()
    theirs = {
        file: np.reshape(each["states"], (-1, each["dims"][-1]))[tokens.padded_positions]
        for file, each in found.items()
    }
    np.testing.assert_allclose(theirs["model.onnx"], expected, atol=1e-5)
    small = theirs["model_quantized.onnx"]
    lengths = np.linalg.norm(small, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((small * expected).sum(axis=1) > 0.98 * lengths).all()


@pytest.mark.parametrize(
    ("head", "settings", "opens"),
    [
        ("sequence_classification", {"num_labels": 3}, "SequenceClassification"),
        ("span_prediction", {}, "QuestionAnswering"),
        ("encoder", {}, "FeatureExtraction"),
    ],
)
def test_optimum_opens_it_and_answers_the_same(tmp_path, head, settings, opens):
    optimum = pytest.importorskip(
        "optimum.onnxruntime", exc_type=ImportError, reason="optimum-onnx: see docs/elsewhere.md"
    )
    transformers = pytest.importorskip("transformers")
    texts = ["a short text", "another one that is longer than the first", "b"]
    tokenizer = tokenizer_of(texts, lowercase=True)
    model = folder_of(head, tokenizer, tmp_path / "model", **settings)
    theirs = getattr(optimum, f"ORTModelFor{opens}").from_pretrained(tmp_path / "model")
    asked = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    rows = asked(texts, padding=True, return_tensors="pt")
    answers = theirs(**rows)
    tokens = ragged(tokenizer, texts)
    with torch.inference_mode():
        expected = outputs_of(model, tokens)
    for name, ours in expected.items():
        values = answers[name]
        if values.shape[:2] == rows["input_ids"].shape:
            values = values.flatten(0, 1)[tokens.padded_positions]
        torch.testing.assert_close(values.reshape(ours.shape), ours, atol=1e-5, rtol=1e-4)
