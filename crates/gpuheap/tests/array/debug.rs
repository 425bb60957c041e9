//! Printed form of arrays.

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Diagonal, MemoryKind, PoolKind, Symmetric, Target, Transposed};
use gpuheap_driver::CUresult;
use insta::assert_debug_snapshot;
use ndarray::{Array, Dimension, IxDyn, arr0, arr2};
use num_complex::Complex;

use crate::support::{assert_no_findings, device, emulated, heap, on_real_gpu};

fn target() -> Target {
    heap(&device(1 << 30, Schedule::OnDemand), PoolKind::Split).target().unwrap()
}

#[test]
fn one_axis() {
    let target = target();
    assert_debug_snapshot!(target.array(&[3]).unwrap(), @"DeviceArray<i32>([1], device) [3]");
    assert_debug_snapshot!(target.array(&[1.0_f32, 2.0, 3.0]).unwrap(), @"DeviceArray<f32>([3], device) [1.0, 2.0, 3.0]");
    assert_debug_snapshot!(target.zeroed::<u8, _>(0).unwrap(), @"DeviceArray<u8>([0], device) []");
    assert_debug_snapshot!(target.kind(MemoryKind::Pinned).filled(1 << 20, 7_u8).unwrap(), @"DeviceArray<u8>([1048576], pinned) [7, 7, 7, 7, 7, 7, 7, 7, …]");
    assert_debug_snapshot!(target.array(&[true, false]).unwrap(), @"DeviceArray<bool>([2], device) [true, false]");
    assert_debug_snapshot!(target.filled(9, ()).unwrap(), @"DeviceArray<()>([9], device) [(), (), (), (), (), (), (), (), …]");
    assert_debug_snapshot!(target.filled(2, Complex::new(1.0_f32, -1.0)).unwrap(), @"DeviceArray<Complex<f32>>([2], device) [Complex { re: 1.0, im: -1.0 }, Complex { re: 1.0, im: -1.0 }]");
    assert_debug_snapshot!(target.filled(2, half::f16::ONE).unwrap(), @"DeviceArray<f16>([2], device) [1.0, 1.0]");
}

#[test]
fn matrices_print_name_and_array() {
    let array = target().array(&[1, 2]).unwrap();
    let nested = Transposed(Diagonal(array.view()));
    assert_eq!(format!("{nested:?}"), "Transposed(Diagonal(DeviceView<i32>([2], device) [1, 2]))");
    let text = format!("{:?}", Symmetric::from_lower(array));
    let inner = "DeviceArray<i32>([2], device) [1, 2]";
    assert_eq!(text, format!("Symmetric {{ matrix: {inner}, from: Lower }}"));
}

#[test]
fn more_axes() {
    let target = target();
    let counted = |shape: &[usize]| {
        let shape = IxDyn(shape);
        let count = shape.size();
        let host = Array::from_shape_vec(shape, (0..count as i32).collect()).unwrap();
        target.array(&host).unwrap()
    };
    assert_debug_snapshot!(target.array(&arr2(&[[1.0, 2.5], [30.0, 4.0]])).unwrap(), @"
    DeviceArray<f64>([2, 2], device)
    [[1.0, 2.5],
     [30.0, 4.0]]
    ");
    assert_debug_snapshot!(counted(&[1, 1]), @"
    DeviceArray<i32>([1, 1], device)
    [[0]]
    ");
    assert_debug_snapshot!(counted(&[1000, 10]), @"
    DeviceArray<i32>([1000, 10], device)
    [[0, 1, 2, 3, 4, 5, 6, 7, …],
     [10, 11, 12, 13, 14, 15, 16, 17, …],
     [20, 21, 22, 23, 24, 25, 26, 27, …],
     [30, 31, 32, 33, 34, 35, 36, 37, …],
     [40, 41, 42, 43, 44, 45, 46, 47, …],
     [50, 51, 52, 53, 54, 55, 56, 57, …],
     …]
    ");
    assert_debug_snapshot!(counted(&[3, 2, 2]), @"
    DeviceArray<i32>([3, 2, 2], device)
    [[[0, 1],
      [2, 3]],

     [[4, 5],
      [6, 7]],

     …]
    ");
    assert_debug_snapshot!(counted(&[2, 1, 2, 1]), @"
    DeviceArray<i32>([2, 1, 2, 1], device)
    [[[[0],
       [1]]],


     [[[2],
       [3]]]]
    ");
    assert_debug_snapshot!(counted(&[2, 0, 3]), @"DeviceArray<i32>([2, 0, 3], device) []");
    assert_debug_snapshot!(target.array(&arr0(42_i64)).unwrap(), @"DeviceArray<i64>([], device) 42");
}

#[test]
fn views_and_handles() {
    let target = target();
    let mut a = target.array(&arr2(&[[1_u8, 2], [3, 4], [5, 6]])).unwrap();
    assert_debug_snapshot!(a.slice(1..).unwrap(), @"
    DeviceView<u8>([2, 2], device)
    [[3, 4],
     [5, 6]]
    ");
    assert_debug_snapshot!(a.slice_mut(2..).unwrap(), @"
    DeviceViewMut<u8>([1, 2], device)
    [[5, 6]]
    ");
    assert_debug_snapshot!(a.reinterpret::<[u8; 2]>().unwrap(), @"
    DeviceView<[u8; 2]>([3, 1], device)
    [[[1, 2]],
     [[3, 4]],
     [[5, 6]]]
    ");
    let shared = a.into_shared();
    assert_debug_snapshot!(shared.clone().into_index(0).unwrap(), @"SharedArray<u8>([2], device) [1, 2]");
    shared.free_early().unwrap();
    assert_debug_snapshot!(shared, @"SharedArray<u8>([3, 2], device) freed");
    assert_debug_snapshot!(target.uninit::<f32, _>((2, 3)).unwrap(), @"UninitArray<f32>([2, 3], device) not written");
}

#[test]
fn width_and_precision_are_the_elements() {
    let a = target().array(&arr2(&[[1.0, 22.25], [333.0, 4.0]])).unwrap();
    insta::assert_snapshot!(format!("{a:6.1?}"), @"
    DeviceArray<f64>([2, 2], device)
    [[   1.0,   22.2],
     [ 333.0,    4.0]]
    ");
}

#[test]
fn unreadable_array_prints_reason() {
    let target = target();
    let bytes = target.array(&[1_u8, 2]).unwrap();
    assert_debug_snapshot!(bytes.reinterpret::<bool>().unwrap(), @"DeviceView<bool>([2], device) unreadable: element 1 of the array is no valid bool: its bytes (1..2) were written as something else; write that element again, or read the bytes with reinterpret::<u8>()");
    if on_real_gpu() {
        return;
    }
    let device = target.stream().device();
    let fault = Fault::nth("cuMemcpyDtoHAsync_v2", 1, CUresult::ERROR_ILLEGAL_ADDRESS);
    device.emulator().unwrap().set_faults(FaultPlan::new([fault]));
    assert_debug_snapshot!(bytes, @"DeviceArray<u8>([2], device) unreadable: cuMemcpyDtoHAsync_v2 failed with CUDA_ERROR_ILLEGAL_ADDRESS (700): an access to an address that is not mapped; the context is lost");
    assert_no_findings(&device, "faults");
}

/// The array has 100 GiB, of which only the printed elements were written. If any other element is
/// read, the checks report a finding.
#[test]
fn little_is_read_of_much() {
    let device = emulated(200 << 30, Schedule::OnDemand);
    let target = heap(&device, PoolKind::Split).target().unwrap();
    let huge = target.uninit::<u8, _>((100, 1 << 30)).unwrap();
    // SAFETY: the fills below write every element that is printed.
    let mut huge = unsafe { huge.assume_written() };
    for row in 0..6 {
        let row = huge.slice_mut(row..row + 1).unwrap().into_shape(1 << 30).unwrap();
        row.into_slice(..8).unwrap().fill(5).unwrap();
    }
    let emulator = device.emulator().unwrap();
    let before = emulator.calls_of("cuMemcpyDtoHAsync_v2");
    assert_debug_snapshot!(huge, @"
    DeviceArray<u8>([100, 1073741824], device)
    [[5, 5, 5, 5, 5, 5, 5, 5, …],
     [5, 5, 5, 5, 5, 5, 5, 5, …],
     [5, 5, 5, 5, 5, 5, 5, 5, …],
     [5, 5, 5, 5, 5, 5, 5, 5, …],
     [5, 5, 5, 5, 5, 5, 5, 5, …],
     [5, 5, 5, 5, 5, 5, 5, 5, …],
     …]
    ");
    assert_eq!(emulator.calls_of("cuMemcpyDtoHAsync_v2") - before, 6);
    // Elements of 1 MiB are too large for the text, so formatting the array reads none of them.
    let pages = huge.into_shape(100_usize << 30).unwrap();
    let pages = pages.into_reinterpreted::<[[u8; 4096]; 256]>().unwrap();
    assert_debug_snapshot!(pages.slice(..3).unwrap(), @"DeviceView<[[u8; 4096]; 256]>([3], device) […]");
    assert_debug_snapshot!(pages.view().into_index(0).unwrap(), @"DeviceView<[[u8; 4096]; 256]>([], device) …");
    assert_eq!(emulator.calls_of("cuMemcpyDtoHAsync_v2") - before, 6);
    assert_no_findings(&device, "never written");
}
