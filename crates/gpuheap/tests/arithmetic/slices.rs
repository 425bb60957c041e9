//! Copies with steps, compared with `ndarray`.

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, Element};
use gpuheap_pool::testing::Random;
use ndarray::{ArrayD, Axis, IxDyn, SliceInfo, SliceInfoElem, array, s};

use crate::reference::Bench;

type Slices = SliceInfo<Vec<SliceInfoElem>, IxDyn, IxDyn>;

fn random_slice(shape: &[usize], random: &mut Random) -> Slices {
    let mut slice = Vec::new();
    for &length in shape {
        if random.below(6) == 0 {
            slice.push(SliceInfoElem::NewAxis);
        }
        if length > 0 && random.below(4) == 0 {
            let index = random.below(length as u64) as isize;
            let from_end = random.below(2) as isize * length as isize;
            slice.push(SliceInfoElem::Index(index - from_end));
            continue;
        }
        let mut at = || random.below(length as u64 + 1) as isize;
        let (start, end) = (at(), at());
        let from_end = if start > 0 && length > 0 { start - length as isize } else { start };
        let start = if random.below(2) == 0 || from_end >= 0 { start } else { from_end };
        let end = (random.below(2) == 0).then_some(end);
        let step =
            [1, 2, 3, 7, -1, -2, -5, 100, isize::MAX, isize::MIN + 1][random.below(10) as usize];
        slice.push(SliceInfoElem::Slice { start, end, step });
    }
    SliceInfo::try_from(slice).unwrap()
}

fn counting<T: Element>(shape: &[usize], of: impl Fn(usize) -> T) -> ArrayD<T> {
    let count = shape.iter().product();
    ArrayD::from_shape_vec(shape, (0..count).map(of).collect()).unwrap()
}

/// Tests copies of elements of one size. A kernel copies an element in one or more units, of 1, 2,
/// 4, 8 or 16 bytes.
fn of_size<T: Element + PartialEq + std::fmt::Debug>(seed: u64, of: impl Fn(usize) -> T) {
    let bench = Bench::new(Schedule::Seeded(seed));
    let target = bench.target();
    let mut random = Random(seed);
    for _ in 0..120 {
        let axes = random.below(5) as usize;
        let shape: Vec<usize> = (0..axes).map(|_| random.below(9) as usize).collect();
        let slice = random_slice(&shape, &mut random);
        let what = format!("{shape:?} {slice:?}");
        let host = counting(&shape, &of);
        let a = target.array(&host).unwrap();
        let found = a.copy_slice(&slice).unwrap();
        let expected = host.slice(&slice);
        assert_eq!(found.to_ndarray().unwrap(), expected, "{what}");
        // Writes to the same slice of another array. The source is repeated along axes of length 1.
        let mut other = host.clone();
        other.iter_mut().enumerate().for_each(|(at, one)| *one = of(at + 1000));
        let mut b = target.array(&other).unwrap();
        let mut source = expected.to_owned();
        for axis in 0..source.ndim() {
            if random.below(3) == 0 && source.len_of(Axis(axis)) > 1 {
                source.slice_axis_inplace(Axis(axis), ndarray::Slice::from(..1));
            }
        }
        b.write_slice(&slice, &target.array(&source).unwrap()).unwrap();
        let shape = expected.raw_dim();
        other.slice_mut(&slice).assign(&source.broadcast(shape).unwrap());
        assert_eq!(b.to_ndarray().unwrap(), other, "{what}: written");
        // Permutes the axes.
        let mut order: Vec<usize> = (0..axes).collect();
        for axis in 1..axes {
            order.swap(axis, random.below(axis as u64 + 1) as usize);
        }
        let found = a.copy_permuted(IxDyn(&order)).unwrap();
        let expected = host.view().permuted_axes(IxDyn(&order));
        assert_eq!(found.to_ndarray().unwrap(), expected, "{what}: {order:?}");
        let found = a.copy_transposed().unwrap();
        assert_eq!(found.to_ndarray().unwrap(), host.t(), "{what}: transposed");
    }
    bench.end();
}

#[test]
fn of_1_byte() {
    of_size(1, |n| n as u8);
}

#[test]
fn of_2_bytes() {
    of_size(2, |n| n as i16);
}

#[test]
fn of_4_bytes() {
    of_size(3, |n| n as f32);
}

#[test]
fn of_8_bytes() {
    of_size(4, |n| n as u64);
}

#[test]
fn of_16_bytes() {
    of_size(5, |n| n as u128);
}

#[test]
fn of_3_bytes() {
    of_size(6, |n| [n as u8, 1, (n >> 8) as u8]);
}

#[test]
fn of_12_bytes() {
    of_size(7, |n| [n as f32, 0.5, -1.0]);
}

#[test]
fn of_48_bytes() {
    of_size(8, |n| [n as u64; 6]);
}

#[test]
fn of_no_bytes() {
    let bench = Bench::new(Schedule::Seeded(9));
    let mut a = bench.target().array(&[[0_u8; 0]; 6]).unwrap();
    assert_eq!(a.copy_slice(s![..;2]).unwrap().shape(), [3]);
    assert_eq!(a.broadcast_to((2, 6)).unwrap().shape(), [2, 6]);
    let other = a.copy().unwrap();
    a.write_slice(s![1..3], &other.slice(..2).unwrap()).unwrap();
    drop((a, other));
    bench.end();
}

/// Tests windows at any address. For a copy from an unaligned address, a kernel must use smaller
/// units than it usually uses for elements of that size.
#[test]
fn windows_that_begin_anywhere() {
    let bench = Bench::new(Schedule::Seeded(10));
    let target = bench.target();
    let host: Vec<u8> = (0..=255).cycle().take(5000).collect();
    let bytes = target.array(&host).unwrap();
    for start in 0..17 {
        let part = &host[start..start + 4800];
        let view = bytes.slice(start..start + 4800).unwrap();
        let four = view.reinterpret::<[u8; 4]>().unwrap();
        let expected: Vec<[u8; 4]> =
            part.chunks_exact(4).step_by(3).map(|four| four.try_into().unwrap()).collect();
        assert_eq!(four.copy_slice(s![..;3]).unwrap().to_vec().unwrap(), expected, "{start}");
        let rows = view.reshape((48, 100)).unwrap();
        let turned = rows.copy_transposed().unwrap().to_ndarray().unwrap();
        let expected = ndarray::ArrayView2::from_shape((48, 100), part).unwrap();
        assert_eq!(turned, expected.t(), "{start}");
    }
    drop(bytes);
    bench.end();
}

#[test]
fn dimensions_are_known() {
    let bench = Bench::new(Schedule::Seeded(11));
    let host = array![[1, 2, 3], [4, 5, 6]];
    let mut a = bench.target().array(&host).unwrap();
    let column: DeviceArray<i32> = a.copy_slice(s![.., -1]).unwrap();
    assert_eq!(column.to_vec().unwrap(), [3, 6]);
    let one: DeviceArray<i32, ndarray::Ix0> = a.copy_slice(s![1, 1]).unwrap();
    assert_eq!(one.to_vec().unwrap(), [5]);
    let deep: DeviceArray<i32, ndarray::Ix3> =
        a.copy_slice(s![.., ndarray::NewAxis, ..;-2]).unwrap();
    assert_eq!(deep.to_ndarray().unwrap(), array![[[3, 1]], [[6, 4]]]);
    a.write_slice(s![.., 0], &one).unwrap();
    a.write_slice(s![..;-1, 1], &column).unwrap();
    assert_eq!(a.to_ndarray().unwrap(), array![[5, 6, 3], [5, 3, 6]]);
    let turned = a.copy_permuted([1, 0]).unwrap();
    assert_eq!(turned.to_ndarray().unwrap(), a.copy_transposed().unwrap().to_ndarray().unwrap());
    drop((a, column, one, deep, turned));
    bench.end();
}

#[test]
fn misfit_slices_are_refused_unwritten() {
    let bench = Bench::new(Schedule::Seeded(12));
    let target = bench.target();
    let mut a = target.array(&array![[1, 2, 3], [4, 5, 6]].into_dyn()).unwrap();
    let wrong =
        |elements: &[SliceInfoElem]| -> Slices { SliceInfo::try_from(elements.to_vec()).unwrap() };
    let all = SliceInfoElem::Slice { start: 0, end: None, step: 1 };
    let of = |start, end, step| SliceInfoElem::Slice { start, end, step };
    let index = SliceInfoElem::Index;
    let seven = target.array(&[7]).unwrap();
    for slice in [
        wrong(&[]),
        wrong(&[all]),
        wrong(&[all, all, all]),
        wrong(&[SliceInfoElem::NewAxis, all]),
        wrong(&[index(2), all]),
        wrong(&[index(-3), all]),
        wrong(&[index(isize::MIN), all]),
        wrong(&[all, index(isize::MAX)]),
        wrong(&[of(0, None, 0), all]),
        wrong(&[of(3, None, 1), all]),
        wrong(&[of(0, Some(3), 1), all]),
        wrong(&[of(-3, None, 1), all]),
        wrong(&[of(isize::MIN, Some(isize::MIN), isize::MIN), all]),
        wrong(&[of(isize::MAX, Some(isize::MAX), isize::MAX), all]),
    ] {
        assert!(a.copy_slice(&slice).is_err(), "{slice:?}");
        assert!(a.write_slice(&slice, &seven).is_err(), "{slice:?}");
    }
    let empty = a.copy_slice(&wrong(&[of(1, Some(0), isize::MIN), all])).unwrap();
    assert_eq!(empty.shape(), [0, 3]);
    let far = a.copy_slice(&wrong(&[of(0, None, isize::MIN), all])).unwrap();
    assert_eq!(far.to_vec().unwrap(), [4, 5, 6]);
    for order in [&[0][..], &[0, 0], &[0, 2], &[0, 1, 2], &[usize::MAX, 0], &[]] {
        assert!(a.copy_permuted(IxDyn(order)).is_err(), "{order:?}");
    }
    assert!(a.write_slice(s![.., ..], &target.array(&[1, 2]).unwrap()).is_err());
    assert!(a.write_slice(s![.., 0], &target.array(&array![[1, 2]]).unwrap()).is_err());
    assert!(a.write_slice(s![.., 0], &target.array(&array![[1], [2]]).unwrap()).is_err());
    assert_eq!(a.to_vec().unwrap(), [1, 2, 3, 4, 5, 6]);
    drop((a, empty, far, seven));
    bench.end();
}

#[test]
fn overlapping_slice_write_is_refused() {
    let bench = Bench::new(Schedule::Seeded(13));
    let a = bench.target().array(&[0, 1, 2, 3, 4, 5]).unwrap().into_shared();
    let mut to = a.clone();
    to.write_slice(s![..3], &a.slice(3..).unwrap()).unwrap();
    assert_eq!(a.to_vec().unwrap(), [3, 4, 5, 3, 4, 5]);
    to.write_slice(s![..;-5], &a.slice(1..3).unwrap()).unwrap_err();
    to.write_slice(s![1..], &a.slice(..1).unwrap()).unwrap();
    assert!(to.write_slice(s![1..], &a.slice(1..2).unwrap()).is_err());
    assert!(to.write_slice(s![..;-1], &a).is_err());
    assert_eq!(a.to_vec().unwrap(), [3; 6]);
    drop((a, to));
    bench.end();
}
