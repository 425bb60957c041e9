//! Element types after adapting.

use bytemuck::{Pod, Zeroable};
use gpuheap::adapt::Plain;
use gpuheap::emu::Schedule;
use gpuheap::{Adapt, DeviceArray, Diagonal, Element, PoolKind, Target};
use ndarray::{Array2, Ix2, arr1, arr2};
use num_complex::Complex;

use crate::support::{assert_all_returned, make_heap};

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable, Adapt)]
#[adapt(element)]
#[repr(C)]
struct Point {
    x: f64,
    tag: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Adapt)]
#[adapt(element)]
#[repr(transparent)]
struct Metres<T>(T);

// SAFETY: `Metres` is transparent over a `T`, so zero bytes are a valid value of both.
unsafe impl<T: Zeroable> Zeroable for Metres<T> {}
// SAFETY: `Metres` is transparent over a `T`, its only field, and `T` is plain old data.
unsafe impl<T: Pod> Pod for Metres<T> {}

/// Checks the results of `adapt`, `narrow` and `cu` for few and for many elements.
fn check<T>(target: &Target, elements: [T; 2], narrow: [T::Narrow; 2], cu: [T::Cu; 2])
where
    T: Plain + PartialEq + std::fmt::Debug + gpuheap::adapt::Item<Group = gpuheap::adapt::Elements>,
    T::Narrow: PartialEq + std::fmt::Debug,
    T::Cu: PartialEq + std::fmt::Debug,
{
    let name = std::any::type_name::<T>();
    // Larger arrays are uploaded alone, in chunks.
    for repeats in [1, 1000, 3 << 18] {
        let many = elements.repeat(repeats);
        assert_same(&target.adapt(&many).unwrap(), &elements, repeats, name);
        assert_same(&target.narrow(&many).unwrap(), &narrow, repeats, name);
        assert_same(&target.cu(&many).unwrap(), &cu, repeats, name);
    }
    // Tests an array that is on a device already.
    let array = target.array(&elements).unwrap();
    assert_same(&target.adapt(&array).unwrap(), &elements, 1, name);
    assert_same(&target.narrow(&array).unwrap(), &narrow, 1, name);
    assert_same(&target.cu(&array.view()).unwrap(), &cu, 1, name);
}

fn assert_same<T: Element + PartialEq + std::fmt::Debug>(
    array: &DeviceArray<T>,
    expected: &[T; 2],
    repeats: usize,
    name: &str,
) {
    let read = array.to_vec().unwrap();
    assert_eq!(read.len(), 2 * repeats, "{name}");
    assert!(read.chunks(2).all(|pair| pair == expected), "{name}: not {expected:?}");
}

#[test]
fn numbers_convert_by_table() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(8), PoolKind::Split);
    let target = &heap.target().unwrap();
    check(target, [1_i8, -2], [1, -2], [1.0_f32, -2.0]);
    check(target, [1_i16, -2], [1, -2], [1.0_f32, -2.0]);
    check(target, [1_i32, -2], [1, -2], [1.0_f32, -2.0]);
    check(target, [(1_i64 << 24) + 1, -2], [(1 << 24) + 1, -2], [16_777_216.0_f32, -2.0]);
    check(target, [1_i128, -2], [1, -2], [1.0_f32, -2.0]);
    check(target, [1_isize, -2], [1, -2], [1.0_f32, -2.0]);
    check(target, [1_u8, 255], [1, 255], [1.0_f32, 255.0]);
    check(target, [1_u16, 2], [1, 2], [1.0_f32, 2.0]);
    check(target, [1_u32, 2], [1, 2], [1.0_f32, 2.0]);
    check(target, [1_u64, 2], [1, 2], [1.0_f32, 2.0]);
    check(target, [1_u128, 2], [1, 2], [1.0_f32, 2.0]);
    check(target, [1_usize, 2], [1, 2], [1.0_f32, 2.0]);
    check(target, [1.5_f32, -2.5], [1.5, -2.5], [1.5_f32, -2.5]);
    check(target, [0.1_f64, 1e300], [0.1_f32, f32::INFINITY], [0.1_f32, f32::INFINITY]);
    check(target, [true, false], [true, false], [true, false]);
    check(target, ['a', 'ß'], ['a', 'ß'], ['a', 'ß']);
    let c = Complex::new;
    check(target, [c(1.5_f32, 2.0); 2], [c(1.5_f32, 2.0); 2], [c(1.5_f32, 2.0); 2]);
    let (double, single) = ([Complex::new(0.1_f64, 2.0); 2], [Complex::new(0.1_f32, 2.0); 2]);
    check(target, double, single, single);
    let (counts, single) = ([Complex::new(1_i32, -2); 2], [Complex::new(1.0_f32, -2.0); 2]);
    check(target, counts, counts, single);
    check(target, [[1_u8, 2], [3, 4]], [[1, 2], [3, 4]], [[1.0_f32, 2.0], [3.0, 4.0]]);
    check(target, [[0.5_f64], [1.5]], [[0.5_f32], [1.5]], [[0.5_f32], [1.5]]);
    let points = [Point { x: 0.1, tag: 1 }, Point { x: 0.2, tag: 2 }];
    check(target, points, points, points);
    check(target, [Metres(1_u8), Metres(2)], [Metres(1), Metres(2)], [Metres(1), Metres(2)]);
    assert_all_returned(&device, &heap, "elements");
}

#[cfg(feature = "half")]
#[test]
fn numbers_of_16_bits() {
    use half::{bf16, f16};

    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(8), PoolKind::Split);
    let target = &heap.target().unwrap();
    let halves = [f16::from_f32(1.5), f16::from_f32(-2.0)];
    check(target, halves, halves, [1.5_f32, -2.0]);
    let halves = [bf16::from_f32(1.5), bf16::from_f32(-2.0)];
    check(target, halves, halves, [1.5_f32, -2.0]);
    let pair = [Complex::new(f16::ONE, f16::ZERO); 2];
    check(target, pair, pair, [Complex::new(1.0_f32, 0.0); 2]);
    let pair = [Complex::new(bf16::ONE, bf16::ZERO); 2];
    check(target, pair, pair, [Complex::new(1.0_f32, 0.0); 2]);
    assert_all_returned(&device, &heap, "16 bits");
}

#[test]
fn deep_inside_structures() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(8), PoolKind::Split);
    let target = heap.target().unwrap();
    let diagonal: Diagonal<DeviceArray<f32>> = target.cu(&Diagonal(vec![1, 2])).unwrap();
    assert_eq!(diagonal.0.to_vec().unwrap(), [1.0, 2.0]);
    let deep = (Some(vec![Diagonal(arr1(&[1_u64]))]), [arr2(&[[0.5_f64]])], 7_u64, [true]);
    let up = target.cu(&deep).unwrap();
    let diagonals: Option<Vec<Diagonal<DeviceArray<f32>>>> = up.0;
    let ([matrix], flags): ([DeviceArray<f32, Ix2>; 1], DeviceArray<bool>) = (up.1, up.3);
    assert_eq!(diagonals.unwrap()[0].0.to_vec().unwrap(), [1.0]);
    assert_eq!((matrix.to_ndarray().unwrap(), up.2), (arr2(&[[0.5]]), 7));
    assert_eq!(flags.to_vec().unwrap(), [true]);
    let up = target.narrow(&deep).unwrap();
    let diagonals: Option<Vec<Diagonal<DeviceArray<u64>>>> = up.0;
    let [narrowed]: [DeviceArray<f32, Ix2>; 1] = up.1;
    assert_eq!(diagonals.unwrap()[0].0.to_vec().unwrap(), [1]);
    assert_eq!(narrowed.to_vec().unwrap(), [0.5]);
    drop((matrix, flags, narrowed, up.3));
    drop(diagonal);
    // Tests an array that is not contiguous, and too large to be uploaded with other arrays.
    let large = Array2::from_shape_fn((100, 200), |(row, column)| (1000 * row + column) as f64);
    let up: DeviceArray<f32, _> = target.cu(&large.t()).unwrap();
    assert_eq!(up.to_ndarray().unwrap(), large.t().mapv(|value| value as f32));
    drop(up);
    assert_all_returned(&device, &heap, "deep");
}
