//! Element types that arrays accept.

use bytemuck::{CheckedBitPattern, NoUninit, Pod, Zeroable};
use gpuheap::emu::Schedule;
use gpuheap::{Element, PoolKind, Target};
use half::{bf16, f16};
use num_complex::Complex;

use crate::support::{assert_all_returned, device, heap, make_heap};

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Point {
    at: [f32; 3],
    tag: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, NoUninit, CheckedBitPattern)]
#[repr(u8)]
enum Colour {
    Red = 1,
    Green = 2,
}

/// Uploads, downloads, fills, copies and slices an array.
fn round<T: Element + PartialEq + std::fmt::Debug>(target: &Target, elements: &[T]) {
    let name = std::any::type_name::<T>();
    let mut a = target.array(elements).unwrap();
    assert_eq!(a.to_vec().unwrap(), elements, "{name}");
    let tail = a.slice(1..).unwrap().copy().unwrap();
    assert_eq!(tail.to_vec().unwrap(), &elements[1..], "{name}");
    a.slice_mut(1..).unwrap().fill(elements[0]).unwrap();
    assert_eq!(a.to_vec().unwrap(), vec![elements[0]; elements.len()], "{name}");
    // A fill may upload 4 KiB of elements, and copy them on the device. This array is longer.
    let long = target.filled(5001, elements[1]).unwrap();
    assert_eq!(long.to_vec().unwrap(), vec![elements[1]; 5001], "{name}");
}

#[test]
fn every_plain_type_is_an_element() {
    let device = device(1 << 30, Schedule::Seeded(11));
    for pool in PoolKind::ALL {
        let heap = heap(&device, pool);
        let target = &heap.target().unwrap();
        round(target, &[1_i8, -2, 3]);
        round(target, &[1_u8, 2, 3]);
        round(target, &[1_i16, -2, 3]);
        round(target, &[1_u16, 2, 3]);
        round(target, &[1_i32, -2, 3]);
        round(target, &[1_u32, 2, 3]);
        round(target, &[1_i64, -2, 3]);
        round(target, &[1_u64, 2, 3]);
        round(target, &[1_i128, -2, 3]);
        round(target, &[1_u128, 2, 3]);
        round(target, &[1_usize, 2, 3]);
        round(target, &[1.5_f32, -2.5, 3.5]);
        round(target, &[1.5_f64, -2.5, 3.5]);
        round(target, &[f16::from_f32(1.5), f16::from_f32(-2.0)]);
        round(target, &[bf16::from_f32(1.5), bf16::from_f32(-2.0)]);
        round(target, &[Complex::new(1.0_f32, 2.0), Complex::new(3.0, 4.0)]);
        round(target, &[Complex::new(1.0_f64, 2.0), Complex::new(3.0, 4.0)]);
        round(target, &[Complex::new(f16::ONE, f16::ZERO), Complex::new(f16::ZERO, f16::ONE)]);
        round(target, &[true, false, true]);
        round(target, &['a', 'ß', '🦀']);
        round(target, &[[1_u8, 2, 3], [4, 5, 6]]);
        round(target, &[[1_u16, 2, 3], [4, 5, 6]]);
        round(target, &[Colour::Red, Colour::Green, Colour::Red]);
        let point = |tag| Point { at: [1.0, 2.0, 3.0], tag };
        round(target, &[point(1), point(2)]);
        round(target, &[(), (), ()]);
        round(target, &[[0.0_f32; 0]; 4]);
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn zero_sized_elements_take_no_memory() {
    let (_device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Split);
    let a = heap.target().unwrap().filled((1 << 20, 1 << 20), ()).unwrap();
    assert_eq!((a.len(), a.bytes(), heap.usage().unwrap().reserved), (1 << 40, 0, 0));
    assert_eq!(a.slice(1..3).unwrap().to_vec().unwrap().len(), 2 << 20);
    assert!(a.reinterpret::<u8>().is_err());
    assert_eq!(a.reinterpret::<[u64; 0]>().unwrap().len(), 1 << 40);
}

#[test]
fn invalid_bytes_are_not_read() {
    let device = device(1 << 30, Schedule::Immediate);
    let target = heap(&device, PoolKind::Split).target().unwrap();
    let bytes = target.kind(gpuheap::MemoryKind::Pinned).array(&[1_u8, 0, 2, 1]).unwrap();
    let bools = bytes.reinterpret::<bool>().unwrap();
    assert_eq!(bools.slice(..2).unwrap().to_vec().unwrap(), [true, false]);
    let error = bools.to_vec().unwrap_err().to_string();
    let expected = "element 2 of the array is no valid bool: its bytes (2..3) were written as \
                    something else; write that element again, or read the bytes with \
                    reinterpret::<u8>()";
    assert_eq!(error, expected);
    let mut into = [true; 4];
    assert!(bools.read_into(&mut into).is_err());
    assert_eq!(into, [true; 4], "unchanged");
    let owned = bytes.into_reinterpreted::<bool>().unwrap();
    assert_eq!(owned.as_slice().unwrap_err().to_string(), expected);
    assert!(target.array(&[0_u8]).unwrap().reinterpret::<Colour>().unwrap().to_vec().is_err());
}

/// The driver's fill functions write values of 1, 2 or 4 bytes to aligned addresses. The elements
/// of an array need not be aligned.
#[test]
fn fills_of_elements_at_odd_places() {
    let (device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Split);
    let target = heap.target().unwrap();
    let mut a = target.zeroed::<u8, _>(17).unwrap().into_slice(1..).unwrap();
    {
        let mut pairs = a.view_mut().into_reinterpreted::<[u8; 2]>().unwrap();
        pairs.fill([1, 2]).unwrap();
        assert_eq!(pairs.to_vec().unwrap(), [[1, 2]; 8]);
    }
    let mut fours = a.view_mut().into_reinterpreted::<[u8; 4]>().unwrap();
    fours.fill([1, 2, 3, 4]).unwrap();
    assert_eq!(a.to_vec().unwrap(), [1, 2, 3, 4].repeat(4));
    drop(a);
    assert_all_returned(&device, &heap, "odd places");
}

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

#[test]
fn overaligned_elements_stay_aligned() {
    let device = device(1 << 30, Schedule::Immediate);
    let target = heap(&device, PoolKind::Split).target().unwrap();
    let shift = target.zeroed::<u8, _>(1).unwrap();
    match target.zeroed::<Page, _>(2) {
        Ok(pages) => {
            assert!(pages.device_ptr(target.stream()).unwrap().is_multiple_of(4096));
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("Page lie at multiples of 4096 bytes"), "{error}");
        }
    }
    drop(shift);
}
