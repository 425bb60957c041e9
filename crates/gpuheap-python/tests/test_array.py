"""Compares elements, parts, arithmetic and reductions of arrays with NumPy's results."""

import array
import gc
import math
import random
import subprocess
import sys

import pytest

import gpuheap
from support import KINDS

NUMBERS = KINDS[1:]
SHAPES = [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 4), (1, 5)]


@pytest.fixture
def np():
    return pytest.importorskip("numpy")


def sample(np, rng, kind, shape):
    """Makes elements of a type, small enough that float32 adds them without rounding."""
    if kind == "bool":
        return np.array(rng.integers(0, 2, shape), "bool")
    low = 0 if kind.startswith("u") else -20
    return np.array(rng.integers(low, 20, shape), kind)


def test_elements_survive_round_trip(np, heap):
    rng = np.random.default_rng(1)
    for kind in KINDS:
        for shape in SHAPES:
            host = sample(np, rng, kind, shape)
            a = heap.array(host)
            assert (a.shape, a.dtype, a.ndim, a.size, a.nbytes) == (
                shape,
                kind,
                len(shape),
                host.size,
                host.nbytes,
            )
            assert a.to_list() == host.tolist()
            assert a.to_bytes() == host.tobytes()
            back = np.asarray(a)
            assert back.dtype == host.dtype and np.array_equal(back, host) and back.flags.writeable
            assert np.dtype(a.dtype) == host.dtype


def test_every_source_makes_an_array(heap):
    assert heap.array(3).to_list() == 3 and heap.array(3).dtype == "int64"
    assert heap.array([True, False]).dtype == "bool"
    assert heap.array([1, 2.5]).to_list() == [1.0, 2.5]
    assert heap.array([2**63]).dtype == "uint64"
    assert heap.array([]).shape == (0,) and heap.array([[], []]).shape == (2, 0)
    assert heap.array(((1, 2), (3, 4)), "u1").to_list() == [[1, 2], [3, 4]]
    assert heap.array(b"abc").to_list() == [97, 98, 99]
    assert heap.array(array.array("f", [1.5])).dtype == "float32"
    assert heap.array(memoryview(bytes(8)).cast("d", (1, 1))).shape == (1, 1)
    assert heap.array([1.5, 300.0], "f4").astype("uint8").to_list() == [1, 255]
    copy = heap.array(heap.array([1, 2]), "f8")
    assert copy.to_list() == [1.0, 2.0]
    assert heap.zeros((2, 2)).to_list() == [[0.0, 0.0], [0.0, 0.0]]
    assert heap.zeros(3, "?").to_list() == [False] * 3
    assert heap.full((2,), 7).dtype == "int64" and heap.full(2, 1.5, float).to_list() == [1.5, 1.5]


def endless():
    items = []
    items.append(items)
    return items


class Liar:
    """An element that makes its list longer when it is converted."""

    def __init__(self, items):
        self.items = items

    def __index__(self):
        self.items.append(1)
        return 1


@pytest.mark.parametrize(
    "source, dtype, error, text",
    [
        ([[1, 2], [3]], None, ValueError, "different lengths"),
        ([1, [2]], None, ValueError, "different lengths"),
        ([[1], 2], None, ValueError, "different lengths"),
        (endless(), None, ValueError, "64"),
        (["a"], None, TypeError, "lists of numbers"),
        ("abc", None, TypeError, "no array can be made"),
        (None, None, TypeError, "no array can be made"),
        ([300], "u1", OverflowError, "range"),
        ([-1], "u8", OverflowError, "range"),
        ([2**200], None, OverflowError, "range"),
        ([1.5], "i4", TypeError, "whole number"),
        ([1], "f2", TypeError, "element type"),
        ([1], "c16", TypeError, "element type"),
        ([1], object(), TypeError, "element type"),
        (1 + 2j, None, TypeError, "complex"),
        ([1, 2j], None, TypeError, "complex"),
    ],
)
def test_wrong_sources_are_refused(heap, source, dtype, error, text):
    with pytest.raises(error, match=text):
        heap.array(source, dtype)


def test_list_may_grow_while_read(heap):
    items = [1]
    items.append(Liar(items))
    assert heap.array(items).to_list() == [1, 1]


def test_buffers_of_every_layout_upload(np, heap):
    host = np.arange(24, dtype="i4").reshape(2, 3, 4)
    for view in (
        host.T,
        host[:, ::2],
        host[::-1],
        np.asfortranarray(host),
        np.broadcast_to(host, (2, 2, 3, 4)),
    ):
        assert np.array_equal(heap.array(view).to_numpy(), view)
    odd = np.frombuffer(b"\x00\x02\xff", "bool")
    assert (
        heap.array(odd).to_list() == [False, True, True] and heap.array(odd).to_bytes() == b"\0\1\1"
    )
    with pytest.raises(TypeError, match="big-endian"):
        heap.array(host.astype(">i4"))
    for other in (
        host.astype("f2"),
        host.astype("c8"),
        np.array(["a"]),
        np.array([None]),
        np.zeros(1, "i4,f4"),
    ):
        with pytest.raises(TypeError, match="format|no array"):
            heap.array(other)
    assert heap.array(np.float32(1.5), "f4").to_list() == 1.5


def test_masks_and_imaginary_parts_are_refused(np, heap):
    masked = np.ma.array([1.0, 2.0], mask=[True, False])
    a = heap.zeros(2)
    for use in (
        lambda: heap.array(masked),
        lambda: heap.adapt({"a": masked}),
        lambda: a.__setitem__(slice(None), masked),
        lambda: heap.alloc(16).copy_from(masked),
        lambda: next(gpuheap.batches(masked, heap=heap)),
    ):
        with pytest.raises(TypeError, match=r"has a mask.*x.filled\(0\)"):
            use()
    assert heap.array(masked.filled(7)).to_list() == [7.0, 2.0]
    for number in (np.complex64(1 + 2j), np.complex128(1 + 2j), np.clongdouble(1)):
        for use in (
            lambda: heap.full(2, number),
            lambda: heap.array([number]),
            lambda: a + number,
            lambda: a.fill(number),
        ):
            with pytest.raises(TypeError, match="complex number.*x.real"):
                use()
    assert heap.full(1, np.complex64(1 + 2j).real).to_list() == [1.0]


@pytest.mark.parametrize(
    "shape", [-1, (2, -1), (2**62, 2**62), 2**70, (2**63,), (1,) * 65, "ab", 1.5, (2**60,)]
)
def test_wrong_shapes_are_refused(heap, shape):
    with pytest.raises((ValueError, TypeError, MemoryError)):
        heap.zeros(shape)
    with pytest.raises((ValueError, TypeError, MemoryError)):
        heap.full(shape, 1)
    with pytest.raises((ValueError, TypeError, MemoryError)):
        heap.array([1]).broadcast_to(shape)


def test_arithmetic_agrees_with_numpy(np, heap):
    rng = np.random.default_rng(2)
    for kind in NUMBERS:
        for left_shape, right_shape in [
            ((7,), (7,)),
            ((3, 4), (4,)),
            ((3, 1), (1, 4)),
            ((), (2, 3)),
            ((0,), (1,)),
        ]:
            left, right = (sample(np, rng, kind, shape) for shape in (left_shape, right_shape))
            a, b = heap.array(left), heap.array(right)
            for name in (
                "__add__",
                "__sub__",
                "__mul__",
                "__eq__",
                "__ne__",
                "__lt__",
                "__le__",
                "__gt__",
                "__ge__",
            ):
                expected = np.asarray(getattr(left, name)(right))
                made = getattr(a, name)(b).to_numpy()
                assert made.dtype == expected.dtype and np.array_equal(made, expected), (kind, name)
            with np.errstate(divide="ignore", invalid="ignore"):
                expected = np.asarray(np.true_divide(left, right))
                made = (a / b).to_numpy()
                assert np.allclose(made, expected, equal_nan=True, rtol=1e-6), kind
                if kind.startswith("u"):
                    assert np.array_equal((a // b).to_numpy(), left // right)
            number = float(3) if kind.startswith("f") else 3
            for made, expected in [
                (a + number, left + left.dtype.type(3)),
                (number + a, left + left.dtype.type(3)),
                (number - a, left.dtype.type(3) - left),
                (a * 3, left * left.dtype.type(3)),
                (a > 3, left > 3),
            ]:
                assert np.array_equal(made.to_numpy(), expected), kind
            if not kind.startswith("u"):
                assert np.array_equal((-a).to_numpy(), -left)


def test_in_place_changes_shared_parts(np, heap):
    for kind in NUMBERS:
        host = np.arange(12).reshape(3, 4).astype(kind)
        a = heap.array(host)
        row, tail = a[1], a[1:]
        before = a
        a += 1
        host += 1
        a *= heap.array([1, 2, 1, 2], kind)
        host *= np.array([1, 2, 1, 2], kind)
        row -= 1
        host[1] -= 1
        assert before is a and np.array_equal(a.to_numpy(), host)
        assert np.array_equal(tail.to_numpy(), host[1:])
        a[1:] += a[:-1]
        host[1:] += host[:-1].copy()
        assert np.array_equal(a.to_numpy(), host)
        a += a
        host += host
        assert np.array_equal(a.to_numpy(), host)
    a = heap.array([1.0, 2.0])
    a /= 2
    assert a.to_list() == [0.5, 1.0]
    with pytest.raises(TypeError, match="quotient"):
        b = heap.array([1])
        b /= 2
    with pytest.raises(ValueError, match="in place"):
        b += heap.array([[1], [2]])


def test_integer_division_truncates(heap):
    a = heap.array([-7, 7, 1], "i4")
    assert (a / 2).to_list() == [-3.5, 3.5, 0.5] and (2 / heap.array([4])).to_list() == [0.5]
    assert a.trunc_div(2).to_list() == [-3, 3, 0] and a.trunc_div(0).to_list() == [0, 0, 0]
    with pytest.raises(TypeError, match="trunc_div"):
        a // 2
    for operation in (lambda: a % 2, lambda: a**2, lambda: a @ a, lambda: divmod(a, 2)):
        with pytest.raises(TypeError):
            operation()


def test_mixed_types_are_refused(np, heap):
    a, b, mask = heap.array([1, 2]), heap.array([1.0, 2.0]), heap.array([True, False])
    for operation in (
        lambda: a + b,
        lambda: a + 1.5,
        lambda: a < b,
        lambda: mask + 1,
        lambda: mask + mask,
        lambda: -mask,
        lambda: ~a,
        lambda: a.all(),
        lambda: mask.min(),
        lambda: a + None,
        lambda: a + "x",
        lambda: a + np.arange(2),
        lambda: np.arange(2) + a,
        lambda: a < None,
        lambda: -heap.array([1], "u1"),
        lambda: mask.trunc_div(2),
    ):
        with pytest.raises(TypeError):
            operation()
    with pytest.raises(OverflowError):
        heap.array([1], "u1") + 256
    with pytest.raises(ValueError, match="go together"):
        a + heap.array([1, 2, 3])
    assert (a == None) is False and (a != None) is True  # noqa: E711
    assert (b + 1).to_list() == [2.0, 3.0] and (b * np.float32(2)).to_list() == [2.0, 4.0]
    assert (a + np.int8(1)).to_list() == [2, 3] and (mask == mask).to_list() == [True, True]
    assert (~mask).to_list() == [False, True]


def test_indices_agree_with_numpy(np, heap):
    rng = random.Random(3)
    host = np.arange(2 * 3 * 4, dtype="i2").reshape(2, 3, 4)
    a = heap.array(host)
    bound = lambda: rng.choice([None, *range(-5, 6)])
    item = lambda: rng.choice(
        [
            rng.randrange(-3, 4),
            slice(bound(), bound(), rng.choice([None, 1, 1, 2, -1, -3])),
            slice(None),
            None,
            ...,
        ]
    )
    seen = 0
    for _ in range(1500):
        index = tuple(item() for _ in range(rng.randrange(0, 5)))
        index = index[0] if len(index) == 1 else index
        try:
            expected = host[index]
        except IndexError:
            with pytest.raises(IndexError):
                a[index]
            continue
        seen += 1
        assert a[index].shape == expected.shape, index
        assert a[index].to_list() == expected.tolist(), index
        changed, ours = host.copy(), a.copy()
        changed[index] = 7
        ours[index] = 7
        assert ours.to_list() == changed.tolist(), index
        value = np.arange(expected.size, dtype="i2").reshape(expected.shape)
        changed[index] = value
        ours[index] = heap.array(value)
        assert ours.to_list() == changed.tolist(), index
    assert seen > 500


def test_parts_share_or_copy(np, heap):
    host = np.arange(12.0).reshape(3, 4)
    a = heap.array(host)
    a[:, 0] += 1
    host[:, 0] += 1
    a[1] = [9.0, 8.0, 7.0, 6.0]
    host[1] = [9, 8, 7, 6]
    a[0, ::2] = a[1, ::2]
    host[0, ::2] = host[1, ::2]
    a[1:] = a[:-1]
    host[1:] = host[:-1].copy()
    assert np.array_equal(a.to_numpy(), host)
    assert [row.to_list() for row in a] == host.tolist() and len(a) == 3
    for index, error in (
        (3, IndexError),
        (-4, IndexError),
        (2**80, IndexError),
        ((0, 0, 0), IndexError),
        ((..., ...), IndexError),
        ((None,) * 100_000, IndexError),
        (1.5, TypeError),
        ("x", TypeError),
        (True, TypeError),
        ([0], TypeError),
        (a > 1, TypeError),
        (slice(0, 1, 0), ValueError),
        (slice("a"), TypeError),
    ):
        with pytest.raises(error):
            a[index]
        with pytest.raises(error):
            a[index] = 1.0
    with pytest.raises(NotImplementedError):
        del a[0]
    for value in (heap.array([1]), "x", None, [1, 2, 3], heap.array([1.0, 2.0, 3.0])):
        with pytest.raises((TypeError, ValueError)):
            a[0] = value
    with pytest.raises(TypeError, match="no length"):
        len(heap.array(1))
    with pytest.raises(IndexError):
        heap.array(1)[0]


def test_array_differs_from_other_objects(np, heap):
    a = heap.array([1, 2])
    for other in ([1, 2], (1, 2), np.array([1, 2]), b"12", memoryview(b"12")):
        for compare in (lambda: a == other, lambda: a != other, lambda: other == a):
            with pytest.raises(TypeError, match=r"a == heap.array\(x\)"):
                compare()
    assert (a == heap.array([1, 2])).all() and (a != 1).to_list() == [False, True]
    for other in (None, "text", object()):
        assert (a == other) is False and (a != other) is True


def test_negative_axes_count_backwards(np, heap):
    host = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(heap.array(host).transpose(-1, 0, 1).to_numpy(), host.transpose(-1, 0, 1))
    with pytest.raises(gpuheap.BadInput, match="order of the axes"):
        heap.array(host).transpose(-4, 0, 1)


def test_shapes_agree_with_numpy(np, heap):
    host = np.arange(24, dtype="u4").reshape(2, 3, 4)
    a = heap.array(host)
    assert np.array_equal(a.T.to_numpy(), host.T)
    assert np.array_equal(a.transpose(1, 2, 0).to_numpy(), host.transpose(1, 2, 0))
    assert np.array_equal(a.reshape(4, -1).to_numpy(), host.reshape(4, -1))
    assert a.reshape((24,)).shape == (24,) and a.reshape(-1).shape == (24,)
    assert heap.array(5).reshape(1, 1).to_list() == [[5]]
    assert np.array_equal(
        a[:, :, :1].broadcast_to((2, 3, 4)).to_numpy(), np.broadcast_to(host[:, :, :1], (2, 3, 4))
    )
    for wrong in ((5, 5), (-1, -1), (-2,), (2**63 - 1, 4), (0, -1), (-1, 7)):
        with pytest.raises((ValueError, OverflowError)):
            a.reshape(wrong)
    for wrong in ((0, 1), (0, 0, 1), (0, 1, 5)):
        with pytest.raises(ValueError):
            a.transpose(*wrong)
    with pytest.raises(ValueError, match="empty lists"):
        heap.zeros((2**40, 0)).to_list()
    assert heap.zeros((0, 2**40)).to_list() == [] and heap.zeros((3, 0, 2)).T.shape == (2, 0, 3)


def test_conversions_saturate_and_wrap(np, heap):
    host = np.array([-1.5, 0.0, 300.7, math.nan, math.inf, -math.inf])
    a = heap.array(host)
    assert a.astype("u1").to_list() == [0, 0, 255, 0, 255, 0]
    assert a.astype("i2").to_list() == [-1, 0, 300, 0, 32767, -32768]
    assert a.astype(bool).to_list() == [True, False, True, True, True, True]
    rng = np.random.default_rng(4)
    for kind in KINDS:
        host = sample(np, rng, kind, (9,))
        for other in KINDS:
            if not (kind.startswith("f") and other.startswith("u")):
                assert np.array_equal(
                    heap.array(host).astype(other).to_numpy(), host.astype(other)
                ), (kind, other)


def test_reductions_agree_with_numpy(np, heap):
    rng = np.random.default_rng(5)
    for kind in KINDS:
        for shape in [(7,), (3, 4), (2, 3, 4), (1,), ()]:
            host = sample(np, rng, kind, shape)
            a = heap.array(host)
            assert a.sum() == host.sum() and a.mean() == pytest.approx(host.mean())
            if kind != "bool":
                assert (a.min(), a.max()) == (host.min(), host.max())
            for axis in range(-len(shape), len(shape)):
                assert np.array_equal(a.sum(axis).to_numpy(), host.sum(axis))
                assert np.allclose(a.mean(axis).to_numpy(), host.mean(axis))
                if kind != "bool":
                    assert np.array_equal(a.min(axis).to_numpy(), host.min(axis))
                    assert np.array_equal(a.max(axis).to_numpy(), host.max(axis))
            for axis in (len(shape), -len(shape) - 1, 2**40):
                with pytest.raises(ValueError, match="axis"):
                    a.sum(axis)
    mask = heap.array([True, False])
    assert (mask.any(), mask.all(), mask.sum(), mask.mean()) == (True, False, 1, 0.5)
    empty = heap.zeros((0, 3))
    assert empty.sum() == 0 and empty.sum(0).to_list() == [0.0] * 3
    for reduction in (empty.mean, empty.min, empty.max, lambda: empty.min(0)):
        with pytest.raises(ValueError, match="no elements"):
            reduction()


def test_groups_agree_with_numpy(np, heap):
    rng = np.random.default_rng(6)
    for kind in KINDS:
        for keys in NUMBERS[:8]:
            host, groups = sample(np, rng, kind, (20, 3)), rng.integers(0, 5, 20).astype(keys)
            a, k = heap.array(host), heap.array(groups)
            expected = np.stack([host[groups == group].sum(0) for group in range(5)])
            assert np.array_equal(a.sum_by_key(k, 5).to_numpy(), expected), (kind, keys)
            counts = np.bincount(groups.astype("i8"), minlength=5)
            assert np.array_equal(k.count_by_key(5).to_numpy(), counts)
            with np.errstate(invalid="ignore"):
                means = expected / counts[:, None]
            assert np.allclose(a.mean_by_key(k, 5).to_numpy(), means, equal_nan=True)
    a = heap.array([1.0, 2.0])
    for keys, groups in (([0, 5], 2), ([-1, 0], 2), ([0], 2), ([0, 1, 1], 2)):
        with pytest.raises(ValueError):
            a.sum_by_key(heap.array(keys), groups)
    for keys in (heap.array([[0, 1]]), heap.array([True, False]), [0, 1]):
        for groups in (2, None):
            with pytest.raises(TypeError):
                a.sum_by_key(keys, groups)
    for groups in (-1, 2**80, 2**62, 1.5):
        with pytest.raises((TypeError, ValueError, OverflowError, MemoryError)):
            a.sum_by_key(heap.array([0, 1]), groups)


def test_float_keys_group_by_value(np, heap):
    rng = np.random.default_rng(7)
    for kind in NUMBERS:
        host = np.array(
            [0.75, -0.5, 2.5, 1e30, 0.25] if kind.startswith("f") else [3, 0, 7, 100, 1], kind
        )
        host = host[rng.integers(0, 5, 200)]
        values = rng.integers(0, 50, (200, 2))
        a, keys = heap.array(values), heap.array(host)
        expected = np.unique(host)
        distinct, sums = a.sum_by_key(keys)
        assert distinct.dtype == kind and np.array_equal(distinct.to_numpy(), expected)
        assert np.array_equal(
            sums.to_numpy(), np.stack([values[host == key].sum(0) for key in expected])
        )
        means = a.mean_by_key(keys)[1].to_numpy()
        assert np.allclose(means, np.stack([values[host == key].mean(0) for key in expected]))
        assert keys.count_by_key()[1].to_list() == [int((host == key).sum()) for key in expected]
    distinct, sums = heap.array([1, 2, 4, 8]).sum_by_key(
        heap.array([math.nan, -0.0, math.nan, 0.0])
    )
    assert sums.to_list() == [10, 5] and distinct[0].item() == 0 and math.isnan(distinct[1].item())
    distinct, sums = heap.zeros(0).sum_by_key(heap.zeros(0))
    assert (distinct.to_list(), sums.to_list()) == ([], [])
    with pytest.raises(ValueError):
        heap.zeros(3).sum_by_key(heap.zeros(2))


def test_whole_float_keys_number_groups(heap):
    a = heap.array([1, 2, 4])
    assert a.sum_by_key(heap.array([1.0, -0.0, 1.0]), 2).to_list() == [2, 5]
    for keys in ([0.5, 0, 1], [math.nan, 0, 1], [math.inf, 0, 1], [1e30, 0, 0]):
        with pytest.raises(ValueError, match="leave groups out"):
            a.sum_by_key(heap.array(keys, "f4"), 2)
    for keys in ([0, 0, 2.0], [-1.0, 0, 0], [2.0**62, 0, 0]):
        with pytest.raises(ValueError, match=r"not within 0\.\.2"):
            a.sum_by_key(heap.array(keys, "f8"), 2)


def test_wide_integers_become_pythons_floats(heap):
    for number in (2**64, -(2**64), 2**70 + 1, -(10**30), 2**1023):
        assert heap.full(2, number, "f8").to_list() == [float(number)] * 2
        assert heap.array([number, 0.5]).to_list() == [float(number), 0.5]
        a = heap.zeros(1)
        a[0] = number
        assert (a - number).to_list() == [0.0] and (1 * a == number).to_list() == [True]
        a.fill(number)
        assert a.item() == float(number)
    assert (
        heap.full(1, 2**70, "f4").item() == float(2**70)
        and heap.full(1, 2**64 - 1).dtype == "uint64"
    )
    a = heap.zeros(1)
    for kind, number in (
        ("f8", 2**1024),
        ("f8", -(10**400)),
        ("f4", 2**128),
        ("i8", 2**64),
        ("u8", -(2**70)),
    ):
        uses = (
            lambda: heap.full(1, number, kind),
            lambda: heap.array([number], kind),
            lambda: a.astype(kind).fill(number),
            lambda: a.astype(kind) + number,
            lambda: number - a.astype(kind),
            lambda: a.astype(kind).__setitem__(0, number),
            lambda: a.astype(kind).__iadd__(number),
        )
        for use in uses:
            with pytest.raises(OverflowError, match="range"):
                use()


def test_comparisons_go_by_value(np, heap):
    import operator

    numbers = [
        0,
        1,
        -1,
        300,
        2**31,
        2**63,
        2**64 - 1,
        2**64,
        -(2**63) - 1,
        2**70,
        -(10**400),
        10**400,
    ]
    numbers += [
        True,
        0.5,
        -0.5,
        1.0,
        254.5,
        1e300,
        -1e300,
        math.inf,
        -math.inf,
        math.nan,
        2.0**63,
        np.int64(-3),
    ]
    elements = {
        "bool": [False, True],
        "uint8": [0, 1, 255],
        "int8": [-128, -1, 0, 127],
        "int64": [-(2**63), 0, 2**63 - 1],
        "uint64": [0, 2**63, 2**64 - 1],
        "float32": [-math.inf, -1.0, 0.5, math.inf, math.nan, float(np.finfo("f4").max)],
        "float64": [-math.inf, -1.0, 0.5, math.inf, math.nan, 1e308],
    }
    for kind, host in elements.items():
        a = heap.array(host, kind)
        for number in numbers:
            for name in ("eq", "ne", "lt", "le", "gt", "ge"):
                compare = getattr(operator, name)
                mask = compare(a, number)
                # Rounds an integer to a float before the comparison, as gpuheap does for float
                # arrays.
                exact = number if abs(number) > 2**64 or not kind.startswith("f") else float(number)
                assert mask.dtype == "bool" and mask.to_list() == [
                    compare(one, exact) for one in host
                ], (kind, number, name)
                if name == "eq":
                    assert (number in a) == any(one == exact for one in host)
    with pytest.raises(TypeError, match="complex"):
        a == 1j


def test_lists_and_numpy_name_the_remedy(np, heap):
    a = heap.array([1.0, 2.0])

    class Device:
        __cuda_array_interface__ = {}

    for other in (np.ones(2), [1.0, 2.0], (1.0, 2.0), memoryview(b"12")):
        for operation in (
            lambda: a + other,
            lambda: other + a,
            lambda: a * other,
            lambda: other - a,
            lambda: a / other,
        ):
            with pytest.raises(TypeError, match=r"heap.array\(x\)"):
                operation()
    with pytest.raises(TypeError, match=r"gpuheap.from_dlpack\(x\)"):
        Device() + a
    assert (np.float64(2) * a).to_list() == [2.0, 4.0]


def test_iteration_yields_numbers_or_rows(np, heap):
    for kind in KINDS:
        host = sample(np, np.random.default_rng(8), kind, (20,))
        a = heap.array(host)
        before = heap.stats()["driver_calls"]
        assert (
            list(a) == host.tolist()
            and max(a) == max(host)
            and (host[3] in a)
            and (sorted(a) == sorted(host))
        )
        assert heap.stats()["driver_calls"] - before < 40
        assert type(next(iter(a))) is type(host.tolist()[0])
    rows = heap.array([[1, 2], [3, 4]])
    for row in rows:
        row += 1
    assert rows.to_list() == [[2, 3], [4, 5]] and [len(row) for row in heap.zeros((3, 0))] == [
        0,
        0,
        0,
    ]
    assert (
        list(heap.zeros((0, 2))) == []
        and 5 in rows
        and 7 not in rows
        and None not in rows
        and "x" not in rows
    )
    assert (
        heap.array([4, 9]) in rows
        and heap.array([9, 9]) not in rows
        and 300 not in heap.zeros(2, "u1")
    )
    numbers = iter(a)
    assert len(list(numbers)) == 20 and next(numbers, None) is None is next(numbers, None)
    with pytest.raises(TypeError, match="without axes"):
        iter(heap.array(1))
    for wrong in ([1], np.ones(2)):
        with pytest.raises(TypeError, match=r"heap.array\(x\)"):
            wrong in rows
    rows.free()
    for use in (lambda: iter(rows), lambda: 1 in rows):
        with pytest.raises(gpuheap.Freed):
            use()


def test_iteration_lets_threads_interrupt_it(heap, request):
    import _thread
    import collections
    import itertools
    import signal
    import threading

    # A shell starts background jobs with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    a, begun = heap.zeros(1 << 22, "uint8"), threading.Event()

    def interrupt():
        begun.wait()
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    # The loop runs in C without Python code, so only gpuheap's iterators can handle signals.
    numbers = itertools.chain.from_iterable(itertools.repeat(a, 1000))
    with pytest.raises(KeyboardInterrupt):
        begun.set()
        collections.deque(numbers, maxlen=0)
    thread.join()


def test_reductions_take_numpys_arguments(np, heap):
    for kind in NUMBERS:
        host = sample(np, np.random.default_rng(9), kind, (3, 4))
        a = heap.array(host)
        for axis in (None, 0, 1, -1):
            for keepdims in (False, True):
                for name in ("sum", "mean", "min", "max"):
                    made = getattr(a, name)(axis=axis, keepdims=keepdims)
                    expected = getattr(host, name)(axis=axis, keepdims=keepdims)
                    made = made.to_numpy() if isinstance(made, gpuheap.Array) else np.asarray(made)
                    assert made.shape == np.shape(expected) and np.allclose(made, expected), (
                        kind,
                        axis,
                        name,
                    )
            for dtype in ("int16", "uint64", "float32", "float64"):
                if kind.startswith("f") and not dtype.startswith("f"):
                    continue
                made = a.sum(axis, dtype, keepdims=True)
                assert made.dtype == dtype and np.array_equal(
                    made.to_numpy(), host.sum(axis, dtype, keepdims=True)
                )
                if axis is None:
                    assert a.sum(dtype=np.dtype(dtype)) == host.sum(dtype=dtype)
        assert (
            np.sum(a) == host.sum()
            and np.max(a) == host.max()
            and np.mean(a) == pytest.approx(host.mean())
        )
        assert np.array_equal(np.sum(a, axis=0).to_numpy(), host.sum(0))
    for reduction in (a.sum, a.mean, a.min, a.max):
        with pytest.raises(TypeError, match="out="):
            reduction(out=np.zeros(()))


class Raising:
    """An object whose conversions raise an error of the caller."""

    def __init__(self, error):
        self.error = error

    def raises(self, *_arguments):
        raise self.error("mine")

    __index__ = __float__ = __len__ = __getitem__ = __iter__ = __cuda_stream__ = raises
    __dlpack__ = __dlpack_device__ = raises


class Index:
    def __init__(self, error):
        self.error = error

    def __index__(self):
        raise self.error("mine")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OverflowError, ZeroDivisionError])
def test_callers_errors_pass_through(heap, error):
    a, rows = heap.zeros(3), heap.zeros((3, 1))
    buffer = heap.alloc(8)
    index, all_of_it = Index(error), Raising(error)
    uses = [
        lambda: a[index],
        lambda: a[index:],
        lambda: rows[0, index],
        lambda: a.__setitem__(index, 1.0),
        lambda: a.__setitem__(0, index),
        lambda: a.fill(index),
        lambda: a + index,
        lambda: a == index,
        lambda: index in a,
        lambda: a.reshape(index),
        lambda: a.reshape(-1, index),
        lambda: a.reshape([index]),
        lambda: a.broadcast_to((3, index)),
        lambda: a.transpose(index),
        lambda: a.sum(index),
        lambda: a.sum_by_key(heap.zeros(3, "i4"), index),
        lambda: heap.alloc(index),
        lambda: heap.alloc(1, index),
        lambda: heap.pinned(index),
        lambda: heap.would_fit(index),
        lambda: heap.reclaim(index),
        lambda: heap.set_limits(index),
        lambda: heap.zeros(index),
        lambda: heap.zeros((1, index)),
        lambda: heap.full(1, index),
        lambda: heap.array(index),
        lambda: heap.array([1, index]),
        lambda: gpuheap.Heap("emulated:1GiB", limit=index),
        lambda: buffer.used_on(index),
        lambda: buffer.fill(index),
        lambda: buffer.to_bytes(index),
        lambda: buffer.copy_from(b"1", index),
        lambda: a.__dlpack__(stream=index),
        lambda: heap.zeros(all_of_it),
        lambda: a.reshape(all_of_it),
        lambda: buffer.used_on(all_of_it),
        lambda: gpuheap.from_dlpack(all_of_it, heap),
        lambda: heap.array([[1], type("List", (list,), {"__iter__": all_of_it.raises})()]),
        lambda: heap.array(type("Number", (), {"__float__": all_of_it.raises})()),
    ]
    for use in uses:
        with pytest.raises(error, match="^mine"):
            use()


def test_array_of_one_becomes_number(heap):
    one = heap.array([[3]])
    assert (one.item(), float(one), int(one), bool(one)) == (3, 3.0, 3, True)
    assert int(heap.array(2.7)) == 2
    for several in (heap.array([1, 2]), heap.zeros(0)):
        for convert in (float, int, bool):
            with pytest.raises(ValueError, match="not one number"):
                convert(several)


def test_free_ends_all_parts(heap):
    a = heap.array([[1.0, 2.0], [3.0, 4.0]])
    row = a[0]
    copy = a.copy()
    assert heap.stats()["live"] > 0
    a.free()
    a.free()
    assert a.freed and row.freed and not copy.freed and "freed" in repr(row)
    uses = [
        row.to_list,
        row.to_bytes,
        row.item,
        row.copy,
        row.sum,
        row.__dlpack__,
        lambda: row + 1,
        lambda: copy + row,
        lambda: row[0],
        lambda: row.ptr,
        lambda: row.stream,
        lambda: row.astype("f4"),
        lambda: row.fill(1),
        lambda: row.reshape(2),
        lambda: row.used_on(0),
        lambda: row.T,
        lambda: row == row,
        lambda: copy.__iadd__(row),
        lambda: row.__setitem__(0, 1.0),
        lambda: heap.array(row),
        lambda: row.transpose(),
        lambda: row.broadcast_to((2, 2)),
        lambda: copy.sum_by_key(row, 1),
        lambda: gpuheap.from_dlpack(row),
        lambda: row.max(0),
        lambda: copy.__setitem__(0, row),
    ]
    for use in uses:
        with pytest.raises(gpuheap.Freed, match="before this use"):
            use()
    assert row.shape == (2,)


def test_part_keeps_the_memory(heap):
    a = heap.array([[1, 2], [3, 4]])
    row = a[1]
    del a
    assert row.to_list() == [3, 4] and heap.stats()["live"] > 0
    del row
    assert heap.stats()["live"] == 0
    with heap.zeros(10) as a:
        pass
    assert a.freed and heap.stats()["live"] == 0


def test_arrays_are_counted_by_line(heap):
    a = heap.zeros(100)
    b = a + 1
    view = b[10:]
    lines = heap.leaks()
    assert [(line.function, line.bytes) for line in lines] == [
        ("test_arrays_are_counted_by_line", 800)
    ] * 2
    b.free()
    assert len(heap.leaks()) == 1
    del view, b


def test_out_of_memory_changes_nothing(heap):
    a = heap.zeros(20 << 20)
    with pytest.raises(gpuheap.OutOfMemory):
        [heap.zeros(20 << 20) for _ in range(4)]
    assert a.sum() == 0.0
    with pytest.raises(gpuheap.OutOfMemory):
        heap.full((2**50,), 1, "u1")
    gc.disable()
    try:
        cycle = [heap.zeros(20 << 20)]
        cycle.append(cycle)
        del cycle
        heap.zeros(30 << 20).free()
    finally:
        gc.enable()
    a.free()


def test_streams(heap):
    own = heap.stream()
    a = heap.array([1, 2, 3], stream=own)
    assert a.stream == own.handle
    b = heap.array([1, 1, 1])
    c = b + a
    assert c.to_list() == [2, 3, 4]
    a.used_on(own)
    a.used_on(0)
    a.free(own)
    c.free()
    with pytest.raises(TypeError):
        b.used_on("x")


def test_arrays_of_two_heaps_mix(heap):
    other, elsewhere = gpuheap.Heap(heap.device), gpuheap.Heap("emulated:2GiB")
    a, b, c = heap.array([1, 2]), other.array([3, 4]), elsewhere.array([5, 6])
    assert (a + b).to_list() == [4, 6]
    for operation in (
        lambda: a + c,
        lambda: a == c,
        lambda: a.__iadd__(c),
        lambda: a.sum_by_key(c, 9),
    ):
        with pytest.raises(ValueError, match="device"):
            operation()
    assert (a + heap.array(c)).to_list() == [6, 8]
    a[1:] = c[:1]
    assert a.to_list() == [1, 5]


def test_threads_share_an_array(heap):
    import threading

    total = heap.zeros(1000, "i8")
    failures = []

    def work():
        try:
            mine = heap.full(1000, 1, "i8", stream=heap.stream())
            for _ in range(50):
                total.__iadd__(mine)
                assert (mine + mine).sum() == 2000
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures and total.sum() == 200 * 1000


def of_little_host_memory(program):
    """Runs a program that can allocate at most 256 MiB of additional host memory."""
    begin = """
import mmap, resource
import gpuheap
heap = gpuheap.Heap("emulated:1GiB", limit="64MiB")
heap.array(memoryview(bytes(80)).cast("d"), "f4").to_list()
big = memoryview(mmap.mmap(-1, 1 << 30))
with open("/proc/self/statm") as file:
    pages = int(file.read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + (256 << 20),) * 2)
def refused(work, least):
    try:
        work()
    except MemoryError as error:
        assert "host" in str(error), error
        wanted = [int(word) for word in str(error).split() if word.isdecimal()]
        assert wanted and wanted[0] >= least, error
    else:
        raise AssertionError("nothing was refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", begin + program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "work, least",
    [
        ("heap.array(big.cast('?'))", 1 << 30),
        ("heap.array(big[::2])", 1 << 29),
        ("heap.array(big.cast('d'), 'f4')", 1 << 29),
        ("heap.alloc(1).copy_from(big[::2])", 1 << 29),
        ("heap.zeros(8)[...].__setitem__(..., big[::2])", 1 << 29),
        ("heap.array([1.5] * (8 << 20))", 1 << 24),
    ],
)
def test_upload_beyond_host_raises_memory_error(work, least):
    of_little_host_memory(
        f"refused(lambda: {work}, {least})\nassert heap.array([1]).to_list() == [1]"
    )


def test_contiguous_source_is_not_copied():
    # The emulated device takes 150 MiB itself.
    of_little_host_memory("gpuheap.Heap('emulated:1GiB').array(big[: 150 << 20])")


def test_source_is_released_after_upload(heap):
    source = bytearray(8)
    array = heap.array(source)
    heap.alloc(8).copy_from(source)
    source.append(1)
    assert array.to_list() == [0] * 8


def test_download_beyond_host_raises_memory_error():
    of_little_host_memory("""
small = gpuheap.Heap("emulated:1GiB")
a = heap.zeros(60 << 20, "uint8")
for work in (a.to_list, lambda: [a.to_bytes() for _ in range(100)]):
    try:
        work()
    except MemoryError:
        pass
    else:
        raise AssertionError(work)
assert heap.array([1]).to_list() == [1]
""")


@pytest.mark.parametrize("spare", [20, 48])
@pytest.mark.parametrize(
    "made, work",
    [
        ("a = heap.zeros(500 << 20, 'uint8')", "a + a"),
        ("a = heap.zeros(500 << 20, 'uint8')", "a.astype('float64')"),
        ("kept = []", "[kept.append(heap.zeros(1)) for _ in range(10**8)]"),
        ("kept = []", "[kept.append(heap.pinned(1)) for _ in range(10**8)]"),
        ("kept = []", "[kept.append(heap.alloc(1)) for _ in range(10**8)]"),
        ("kept, a = [], heap.zeros(8)", "[kept.append(a.__dlpack__()) for _ in range(10**8)]"),
        ("kept = []", "[kept.append(gpuheap.Heap('emulated:1GiB')) for _ in range(10**8)]"),
    ],
)
def test_heap_works_after_host_shortage(made, work, spare):
    program = f"""
import gc, mmap, resource
import gpuheap
heap = gpuheap.Heap("emulated:8GiB", track="lines")
heap.array([1]).to_list()
{made}
with open("/proc/self/statm") as file:
    pages = int(file.read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + ({spare} << 20),) * 2)
try:
    {work}
except MemoryError:
    kept = a = None
else:
    raise AssertionError("nothing was refused")
gc.collect()
heap.reclaim()
assert heap.array([1]).to_list() == [1]
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
