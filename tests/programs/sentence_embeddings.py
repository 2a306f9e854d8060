"""Embeds sentences with sentence-transformers over a BERT of random weights, without a download."""

import string
import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, models
from transformers import BertConfig, BertModel, BertTokenizerFast, logging

logging.set_verbosity_error()
torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    vocabulary = Path(folder) / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]))
    BertTokenizerFast(vocab_file=str(vocabulary)).save_pretrained(folder)
    config = BertConfig(
        vocab_size=57,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    words = models.Transformer(folder, max_seq_length=64)
    embedder = SentenceTransformer(
        modules=[words, models.Pooling(words.get_word_embedding_dimension())], device="cpu"
    )
    sentences = [f"a sentence about {string.ascii_lowercase[i % 26] * 3}" for i in range(200)]
    for _ in range(3):
        vectors = embedder.encode(sentences, batch_size=16, show_progress_bar=False)
print("vectors", vectors.shape, f"{abs(vectors).sum() > 0}")
