"""Moves structures that contain arrays to a device and back."""

import array
import collections
import dataclasses
from typing import Any, NamedTuple

import pytest

import gpuheap


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Layer:
    weights: Any
    name: str
    rate: float = 0.5

    def __post_init__(self):
        assert not isinstance(self.weights, gpuheap.Array)


def test_structure_survives_round_trip(heap):
    np = pytest.importorskip("numpy")
    weights = np.arange(6, dtype="f4").reshape(2, 3)
    structure = {
        "layers": [Layer(weights, "first"), Layer(weights[:, ::2], "last")],
        "pair": Pair((1, 2.5, "x", b"raw", None, True), array.array("i", [1, 2])),
        3: collections.OrderedDict(a=np.float64(2), b=np.arange(3)),
        "empty": [(), {}, []],
    }
    up = heap.adapt(structure)
    assert (
        isinstance(up["layers"][0], Layer)
        and isinstance(up["pair"], Pair)
        and type(up[3]) is collections.OrderedDict
    )
    assert [(layer.weights.dtype, layer.weights.shape) for layer in up["layers"]] == [
        ("float32", (2, 3)),
        ("float32", (2, 2)),
    ]
    assert up["pair"].left == (1, 2.5, "x", b"raw", None, True) and up["empty"] == [(), {}, []]
    assert isinstance(up[3]["a"], np.float64) and up[3]["b"].dtype == "int64"
    down = gpuheap.host(up)
    assert (
        np.array_equal(down["layers"][1].weights, weights[:, ::2]) and down["layers"][1].rate == 0.5
    )
    assert down["pair"].right.tolist() == [1, 2] and type(down["pair"].right) is np.ndarray
    assert structure["layers"][0].weights is weights


def test_narrow_halves_floats_alone(heap):
    np = pytest.importorskip("numpy")
    kinds = ["f8", "f4", "i8", "u8", "?", "i2"]
    up = heap.adapt([np.ones(2, kind) for kind in kinds], narrow=True)
    assert [one.dtype for one in up] == ["float32", "float32", "int64", "uint64", "bool", "int16"]
    value = np.array([1 / 3, 1e300])
    with np.errstate(over="ignore"):
        assert np.array_equal(heap.adapt(value, narrow=True).to_numpy(), value.astype("f4"))
    assert heap.adapt(1 / 3, narrow=True) == 1 / 3


def test_repeated_array_is_uploaded_once(heap):
    data = memoryview(bytes(8))
    up = heap.adapt({"a": data, "b": [data]})
    assert up["a"] is up["b"][0]
    again = heap.adapt(up)
    assert again["a"] is up["a"]


def test_circles_and_wrong_arrays_are_located(heap):
    np = pytest.importorskip("numpy")
    circle = {"a": [1]}
    circle["a"].append(circle)
    with pytest.raises(ValueError, match=r"contains itself at \['a'\]\[1\]"):
        heap.adapt(circle)
    with pytest.raises(TypeError) as caught:
        heap.adapt({"a": [np.arange(2), np.array([None])]})
    assert "['a'][1]" in caught.value.__notes__[0]


def test_failed_adapt_frees_its_uploads():
    heap = gpuheap.Heap("emulated:1GiB", limit="16MiB")
    parts = [memoryview(bytes(size << 20)) for size in (5, 5, 10)]
    with pytest.raises(gpuheap.OutOfMemory) as caught:
        heap.adapt(parts)
    assert heap.stats()["live"] == 0 and caught.value.requested == 10 << 20


def test_deep_structures_do_not_recurse(heap):
    deep = [array.array("b", [7])]
    for _ in range(200_000):
        deep = [deep]
    up = heap.adapt(deep)
    down, depth = gpuheap.host(up), 0
    while isinstance(up, list):
        up, down, depth = up[0], down[0], depth + 1
    assert (up.to_list(), down.tolist(), depth) == ([7], [7], 200_001)
    del up
    wrong = array.array("u", "x")
    for _ in range(200_000):
        wrong = [wrong]
    with pytest.raises(TypeError) as caught:
        heap.adapt(wrong)
    (note,) = caught.value.__notes__
    assert note.startswith("in the structure: [0][0]") and "]...[" in note and len(note) < 200
    while isinstance(deep, list) or isinstance(wrong, list):
        deep, wrong = (one[0] if isinstance(one, list) else one for one in (deep, wrong))


def test_key_with_failing_repr_is_named(heap):
    class Key:
        def __repr__(self):
            raise KeyError("no text")

    up = heap.adapt({Key(): array.array("b", [7])})
    assert [one.to_list() for one in up.values()] == [[7]]
    del up
    with pytest.raises(TypeError) as caught:
        heap.adapt({Key(): array.array("u", "x")})
    assert "[<" in caught.value.__notes__[0] and "Key>]" in caught.value.__notes__[0]


class Sized(dict):
    """A dict subclass that counts assignments. Its constructor takes an argument."""

    def __init__(self, size):
        self.size = size


def test_dict_subclasses_keep_their_type(heap):
    data = array.array("b", [7])
    structure = [
        collections.Counter(a=3, b=1),
        collections.OrderedDict([("z", data), ("a", 1)]),
        collections.defaultdict(list, x=data, y=[2]),
        Sized(4),
    ]
    structure[3]["x"] = data
    up = heap.adapt(structure)
    down = gpuheap.host(up)
    for made in (up, down):
        assert [type(one) for one in made] == [type(one) for one in structure]
        assert made[0] == collections.Counter(a=3, b=1) and list(made[1]) == ["z", "a"]
        assert made[2].default_factory is list and made[2]["y"] == [2] and made[3].size == 4
    assert up[1]["z"] is up[2]["x"] is up[3]["x"] and up[1]["z"].to_list() == [7]
    assert structure[1]["z"] is data is structure[3]["x"] and list(down[3]["x"]) == [7]


@pytest.mark.parametrize(
    "library, name, attributes, remedy",
    [
        ("pandas", "Index", {"__array__": None}, r"x\.to_numpy\(\), or pandas\.Series\(x\)"),
        ("polars", "LazyFrame", {"collect": None}, r"x\.collect\(\)"),
        ("pylibcudf", "Table", {"__arrow_c_device_array__": None}, r"gpuheap\.from_dlpack"),
    ],
)
def test_objects_without_rows_are_refused(heap, library, name, attributes, remedy):
    kind = type(name, (), {"__iter__": lambda self: iter("ab"), **attributes})
    kind.__module__ = f"{library}.core"
    part = kind()
    for use in (
        lambda: heap.adapt({"a": [part]}),
        lambda: gpuheap.batches(part, heap=heap),
        lambda: next(gpuheap.batches([part], heap=heap)),
    ):
        with pytest.raises(TypeError, match=f"{library}.{name} .*{remedy}"):
            use()
    # A single value of a data-frame library, such as a timestamp, is not refused, and stays.
    value = type("Timestamp", (), {})
    value.__module__ = f"{library}.scalars"
    value = value()
    assert heap.adapt([value]) == [value]
