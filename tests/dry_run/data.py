"""Makes random data in the formats and shapes that the programs in a folder read.

    data.py FOLDER

FOLDER has the programs' sources as `OWNER/NAME`. The data has the shapes that the runs on a GPU
used. Memory depends on the shapes, not on the values.
"""

import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

EXAMPLES = "pytorch/examples"
LIGHTNING = "Lightning-AI/pytorch-lightning"
WORDS = 8000


def main():
    folder = Path(sys.argv[1])
    random = np.random.default_rng(0)
    characters(folder / "karpathy/nanoGPT/data/shakespeare_char", random)
    for place in (
        f"{EXAMPLES}/data",
        f"{EXAMPLES}/mnist_forward_forward/data",
        f"{LIGHTNING}/Datasets",
    ):
        digits(folder / place / "MNIST/raw", random)
    texts = folder / EXAMPLES / "word_language_model/data/wikitext-2"
    for name, lines in (("train", 3000), ("valid", 300), ("test", 300)):
        text(texts / f"{name}.txt", lines, random)
    text(folder / LIGHTNING / "examples/pytorch/basics/data/wikitext-2.txt", 10_000, random)
    photographs = folder / EXAMPLES / "super_resolution/dataset/BSDS300/images"
    images(photographs / "train", 200, (481, 321), random)
    images(photographs / "test", 100, (481, 321), random)
    for part in ("train", "validation"):
        for label in ("cat", "dog"):
            images(folder / "images" / part / label, 32, (256, 256), random)
    citations(folder / EXAMPLES / "gat/cora", random)
    planetoid(folder / "pyg-team/pytorch_geometric/data/Planetoid/Cora/raw", random)
    word_model(folder / EXAMPLES / "word_language_model")


def characters(folder, random):
    """Writes random tokens of a 65-character alphabet, and the alphabet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        random.integers(0, 65, 1_000_000).astype(np.uint16).tofile(folder / f"{name}.bin")
    letters = [chr(33 + number) for number in range(65)]
    alphabet = {
        "vocab_size": 65,
        "itos": dict(enumerate(letters)),
        "stoi": {letter: number for number, letter in enumerate(letters)},
    }
    (folder / "meta.pkl").write_bytes(pickle.dumps(alphabet))


def digits(folder, random):
    """Writes images of 28 by 28 pixels with labels, in the format of MNIST."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 6000), ("t10k", 1000)):
        pixels = random.integers(0, 255, (count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte", pixels)
        labels = random.integers(0, 10, count).astype(np.uint8)
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels)


def write_idx(path, array):
    head = struct.pack(">BBBB", 0, 0, 8, array.ndim)
    sizes = b"".join(struct.pack(">I", size) for size in array.shape)
    path.write_bytes(head + sizes + array.tobytes())


def text(path, lines, random):
    """Writes lines of 20 words, with every word of the vocabulary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = random.integers(0, WORDS, (lines, 20))
    numbers.flat[: min(WORDS, numbers.size)] = np.arange(WORDS)[: numbers.size]
    path.write_text("".join(" ".join(f"w{n}" for n in row) + "\n" for row in numbers))


def images(folder, count, size, random):
    """Writes JPEG images of a single colour each, because such files are small."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        colour = tuple(int(part) for part in random.integers(0, 256, 3))
        Image.new("RGB", size, colour).save(folder / f"{number}.jpg")


def graph(random):
    """Returns a random graph of Cora's size: features, classes and edges. No edge is a loop."""
    features = (random.random((2708, 1433)) < 0.0127).astype(np.float32)
    features[:, 0] = 1
    classes = np.arange(2708) % 7
    edges = random.integers(0, 2708, (5429, 2))
    edges[edges[:, 0] == edges[:, 1], 1] += 1
    return features, classes, np.unique(edges % 2708, axis=0)


def citations(folder, random):
    folder.mkdir(parents=True, exist_ok=True)
    features, classes, edges = graph(random)
    with open(folder / "cora.content", "w") as file:
        for number, (row, label) in enumerate(zip(features, classes)):
            file.write(f"{number} {' '.join(str(int(part)) for part in row)} class{label}\n")
    (folder / "cora.cites").write_text("".join(f"{a} {b}\n" for a, b in edges))


def planetoid(folder, random):
    """Writes a random graph in the pickled format of Planetoid's files."""
    from scipy.sparse import csr_matrix

    folder.mkdir(parents=True, exist_ok=True)
    features, classes, edges = graph(random)
    one_hot = np.eye(7, dtype=np.int32)[classes]
    neighbours = {node: [] for node in range(2708)}
    for a, b in edges:
        neighbours[int(a)].append(int(b))
        neighbours[int(b)].append(int(a))
    parts = {"": slice(0, 140), "t": slice(1708, None), "all": slice(0, 1708)}
    files = {"graph": neighbours}
    for name, part in parts.items():
        files[f"{name}x"] = csr_matrix(features[part])
        files[f"{name}y"] = one_hot[part]
    for name, value in files.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(value))
    (folder / "ind.cora.test.index").write_text("".join(f"{n}\n" for n in range(1708, 2708)))


def word_model(folder):
    """Saves an untrained model for the text generator of `word_language_model`."""
    code = (
        "import torch, model; "
        f"torch.save(model.RNNModel('LSTM', {WORDS + 1}, 200, 200, 2, 0.2), 'model.pt')"
    )
    if (folder / "model.py").exists():
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


if __name__ == "__main__":
    main()
