//! Printing of special matrices, of which an array holds only the necessary elements.

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{
    Diagonal, LowerTriangular, MemoryKind, PoolKind, Symmetric, Target, Transposed, UpperTriangular,
};
use gpuheap_driver::CUresult;
use insta::{assert_debug_snapshot, assert_snapshot};
use ndarray::{Array2, Array3, ArrayD, arr2};

use crate::support::{assert_no_findings, device, emulated, heap, on_real_gpu};

fn target() -> Target {
    heap(&device(1 << 30, Schedule::OnDemand), PoolKind::Split).target().unwrap()
}

fn counted(rows: usize, columns: usize) -> Array2<i32> {
    Array2::from_shape_fn((rows, columns), |(row, column)| (10 * row + column) as i32)
}

#[test]
fn unstored_elements_print_as_dots() {
    let target = target();
    let square = target.array(&counted(3, 3)).unwrap();
    assert_debug_snapshot!(Diagonal(target.array(&[1.0_f32, 0.0]).unwrap()), @"
    Diagonal(DeviceArray<f32>([2], device))
    [[1.0, ⋅],
     [⋅, 0.0]]
    ");
    assert_debug_snapshot!(UpperTriangular(square.view()), @"
    UpperTriangular(DeviceView<i32>([3, 3], device))
    [[0, 1, 2],
     [⋅, 11, 12],
     [⋅, ⋅, 22]]
    ");
    assert_debug_snapshot!(LowerTriangular(&square), @"
    LowerTriangular(DeviceArray<i32>([3, 3], device))
    [[0, ⋅, ⋅],
     [10, 11, ⋅],
     [20, 21, 22]]
    ");
    assert_debug_snapshot!(Symmetric::from_upper(&square), @"
    Symmetric(DeviceArray<i32>([3, 3], device))
    [[0, 1, 2],
     [1, 11, 12],
     [2, 12, 22]]
    ");
    assert_debug_snapshot!(Symmetric::from_lower(&square), @"
    Symmetric(DeviceArray<i32>([3, 3], device))
    [[0, 10, 20],
     [10, 11, 21],
     [20, 21, 22]]
    ");
    assert_debug_snapshot!(Transposed(square), @"
    Transposed(DeviceArray<i32>([3, 3], device))
    [[0, 10, 20],
     [1, 11, 21],
     [2, 12, 22]]
    ");
}

#[test]
fn few_elements_are_shown() {
    let target = target().kind(MemoryKind::Pinned);
    let wide = target.array(&counted(20, 30)).unwrap();
    assert_debug_snapshot!(Diagonal(target.filled(1 << 20, 7_u8).unwrap()), @"
    Diagonal(DeviceArray<u8>([1048576], pinned))
    [[7, ⋅, ⋅, ⋅, ⋅, ⋅, ⋅, ⋅, …],
     [⋅, 7, ⋅, ⋅, ⋅, ⋅, ⋅, ⋅, …],
     [⋅, ⋅, 7, ⋅, ⋅, ⋅, ⋅, ⋅, …],
     [⋅, ⋅, ⋅, 7, ⋅, ⋅, ⋅, ⋅, …],
     [⋅, ⋅, ⋅, ⋅, 7, ⋅, ⋅, ⋅, …],
     [⋅, ⋅, ⋅, ⋅, ⋅, 7, ⋅, ⋅, …],
     …]
    ");
    assert_debug_snapshot!(UpperTriangular(wide.view()), @"
    UpperTriangular(DeviceView<i32>([20, 30], pinned))
    [[0, 1, 2, 3, 4, 5, 6, 7, …],
     [⋅, 11, 12, 13, 14, 15, 16, 17, …],
     [⋅, ⋅, 22, 23, 24, 25, 26, 27, …],
     [⋅, ⋅, ⋅, 33, 34, 35, 36, 37, …],
     [⋅, ⋅, ⋅, ⋅, 44, 45, 46, 47, …],
     [⋅, ⋅, ⋅, ⋅, ⋅, 55, 56, 57, …],
     …]
    ");
    assert_debug_snapshot!(LowerTriangular(wide.view()), @"
    LowerTriangular(DeviceView<i32>([20, 30], pinned))
    [[0, ⋅, ⋅, ⋅, ⋅, ⋅, ⋅, ⋅, …],
     [10, 11, ⋅, ⋅, ⋅, ⋅, ⋅, ⋅, …],
     [20, 21, 22, ⋅, ⋅, ⋅, ⋅, ⋅, …],
     [30, 31, 32, 33, ⋅, ⋅, ⋅, ⋅, …],
     [40, 41, 42, 43, 44, ⋅, ⋅, ⋅, …],
     [50, 51, 52, 53, 54, 55, ⋅, ⋅, …],
     …]
    ");
    assert_debug_snapshot!(Symmetric::from_lower(target.array(&counted(9, 9)).unwrap()), @"
    Symmetric(DeviceArray<i32>([9, 9], pinned))
    [[0, 10, 20, 30, 40, 50, 60, 70, …],
     [10, 11, 21, 31, 41, 51, 61, 71, …],
     [20, 21, 22, 32, 42, 52, 62, 72, …],
     [30, 31, 32, 33, 43, 53, 63, 73, …],
     [40, 41, 42, 43, 44, 54, 64, 74, …],
     [50, 51, 52, 53, 54, 55, 65, 75, …],
     …]
    ");
    assert_debug_snapshot!(Transposed(wide), @"
    Transposed(DeviceArray<i32>([20, 30], pinned))
    [[0, 10, 20, 30, 40, 50, 60, 70, …],
     [1, 11, 21, 31, 41, 51, 61, 71, …],
     [2, 12, 22, 32, 42, 52, 62, 72, …],
     [3, 13, 23, 33, 43, 53, 63, 73, …],
     [4, 14, 24, 34, 44, 54, 64, 74, …],
     [5, 15, 25, 35, 45, 55, 65, 75, …],
     …]
    ");
    assert_debug_snapshot!(Transposed(target.array(&[1, 2]).unwrap()), @"
    Transposed(DeviceArray<i32>([2], pinned))
    [[1, 2]]
    ");
    assert_debug_snapshot!(UpperTriangular(target.zeroed::<u8, _>((0, 3)).unwrap()), @"UpperTriangular(DeviceArray<u8>([0, 3], pinned)) []");
}

#[test]
fn nested_wrappers_print_combined() {
    let target = target();
    let wide = target.array(&counted(2, 3)).unwrap();
    assert_debug_snapshot!(Transposed(UpperTriangular(wide.view())), @"
    Transposed(UpperTriangular(DeviceView<i32>([2, 3], device)))
    [[0, ⋅],
     [1, 11],
     [2, 12]]
    ");
    assert_debug_snapshot!(LowerTriangular(Transposed(&wide)), @"
    LowerTriangular(Transposed(DeviceArray<i32>([2, 3], device)))
    [[0, ⋅],
     [1, 11],
     [2, 12]]
    ");
    assert_debug_snapshot!(Transposed(Diagonal(target.array(&[true, false]).unwrap())), @"
    Transposed(Diagonal(DeviceArray<bool>([2], device)))
    [[true, ⋅],
     [⋅, false]]
    ");
    assert_debug_snapshot!(Symmetric::from_lower(UpperTriangular(counted(2, 2))), @"
    Symmetric(UpperTriangular(Array<i32>([2, 2])))
    [[0, ⋅],
     [⋅, 11]]
    ");
}

#[test]
fn non_matrices_print_unchanged() {
    let target = target();
    let wide = target.array(&counted(1, 2)).unwrap();
    assert_debug_snapshot!(Diagonal(wide.view()), @"
    Diagonal(DeviceView<i32>([1, 2], device)
    [[0, 1]])
    ");
    assert_debug_snapshot!(Symmetric::from_upper(wide.view()), @"
    Symmetric(DeviceView<i32>([1, 2], device)
    [[0, 1]])
    ");
    assert_debug_snapshot!(Transposed(Symmetric::from_upper(wide.view())), @"
    Transposed(Symmetric(DeviceView<i32>([1, 2], device)
    [[0, 1]]))
    ");
    assert_debug_snapshot!(UpperTriangular(target.array(&[1]).unwrap()), @"UpperTriangular(DeviceArray<i32>([1], device) [1])");
    assert_debug_snapshot!(Transposed(target.array(&Array3::<u8>::zeros((1, 1, 1))).unwrap()), @"
    Transposed(DeviceArray<u8>([1, 1, 1], device)
    [[[0]]])
    ");
}

#[test]
fn host_arrays_print_alike() {
    assert_debug_snapshot!(Diagonal(vec![1, 2]), @"
    Diagonal(Vec<i32>([2]))
    [[1, ⋅],
     [⋅, 2]]
    ");
    assert_debug_snapshot!(UpperTriangular(counted(2, 2)), @"
    UpperTriangular(Array<i32>([2, 2]))
    [[0, 1],
     [⋅, 11]]
    ");
    assert_debug_snapshot!(Transposed(counted(2, 3).t()), @"
    Transposed(Array<i32>([3, 2]))
    [[0, 1, 2],
     [10, 11, 12]]
    ");
    assert_debug_snapshot!(LowerTriangular(ArrayD::<f32>::zeros(vec![2, 2])), @"
    LowerTriangular(Array<f32>([2, 2]))
    [[0.0, ⋅],
     [0.0, 0.0]]
    ");
    assert_debug_snapshot!(Symmetric::from_lower(counted(9, 9)), @"
    Symmetric(Array<i32>([9, 9]))
    [[0, 10, 20, 30, 40, 50, 60, 70, …],
     [10, 11, 21, 31, 41, 51, 61, 71, …],
     [20, 21, 22, 32, 42, 52, 62, 72, …],
     [30, 31, 32, 33, 43, 53, 63, 73, …],
     [40, 41, 42, 43, 44, 54, 64, 74, …],
     [50, 51, 52, 53, 54, 55, 65, 75, …],
     …]
    ");
}

#[test]
fn width_and_precision_are_the_elements() {
    let a = target().array(&arr2(&[[1.0, 22.25], [333.0, 4.0]])).unwrap();
    assert_snapshot!(format!("{:6.1?}", UpperTriangular(&a)), @"
    UpperTriangular(DeviceArray<f64>([2, 2], device))
    [[   1.0,   22.2],
     [     ⋅,    4.0]]
    ");
    assert_snapshot!(format!("{:#?}", Diagonal(vec![1, 2])), @"
    Diagonal(Vec<i32>([2]))
    [[1, ⋅],
     [⋅, 2]]
    ");
}

#[test]
fn freed_or_unreadable_prints_reason() {
    let target = target();
    let shared = target.array(&counted(2, 2)).unwrap().into_shared();
    shared.free_early().unwrap();
    assert_debug_snapshot!(Transposed(UpperTriangular(shared.clone())), @"Transposed(UpperTriangular(SharedArray<i32>([2, 2], device))) freed");
    assert_debug_snapshot!(Diagonal(shared), @"Diagonal(SharedArray<i32>([2, 2], device) freed)");
    let bytes = target.array(&[1_u8, 2]).unwrap();
    assert_debug_snapshot!(Diagonal(bytes.reinterpret::<bool>().unwrap()), @"Diagonal(DeviceView<bool>([2], device)) unreadable: element 1 of the array is no valid bool: its bytes (1..2) were written as something else; write that element again, or read the bytes with reinterpret::<u8>()");
    if on_real_gpu() {
        return;
    }
    let device = target.stream().device();
    let fault = Fault::nth("cuMemcpyDtoHAsync_v2", 1, CUresult::ERROR_ILLEGAL_ADDRESS);
    device.emulator().unwrap().set_faults(FaultPlan::new([fault]));
    assert_debug_snapshot!(Diagonal(bytes), @"Diagonal(DeviceArray<u8>([2], device)) unreadable: cuMemcpyDtoHAsync_v2 failed with CUDA_ERROR_ILLEGAL_ADDRESS (700): an access to an address that is not mapped; the context is lost");
    assert_no_findings(&device, "faults");
}

/// Of 100 GiB only the printed elements were written: reading any other is a finding of the checks.
#[test]
fn little_is_read_of_much() {
    let device = emulated(200 << 30, Schedule::OnDemand);
    let target = heap(&device, PoolKind::Split).target().unwrap();
    let huge = target.uninit::<u8, _>((1 << 18, 1 << 18)).unwrap();
    // SAFETY: what is read is written below.
    let mut huge = unsafe { huge.assume_written() };
    for row in 0..8 {
        let row = huge.slice_mut(row..row + 1).unwrap().into_shape(1 << 18).unwrap();
        row.into_slice(..8).unwrap().fill(5).unwrap();
    }
    for text in [
        format!("{:?}", UpperTriangular(&huge)),
        format!("{:?}", LowerTriangular(&huge)),
        format!("{:?}", Symmetric::from_lower(&huge)),
        format!("{:?}", Symmetric::from_upper(&huge)),
        format!("{:?}", Transposed(&huge)),
    ] {
        assert!(text.lines().count() == 8 && text.contains(", …],"), "{text}");
    }
    let row = huge.view().into_shape(1_usize << 36).unwrap();
    assert!(format!("{:?}", Diagonal(row)).contains("[[5, ⋅"));
    // Elements that are too large to be shown are not read at all.
    let pages = huge.view().into_reinterpreted::<[[u8; 4096]; 2]>().unwrap();
    assert_debug_snapshot!(UpperTriangular(pages.slice(..2).unwrap()), @"
    UpperTriangular(DeviceView<[[u8; 4096]; 2]>([2, 32], device))
    [[…],
     […]]
    ");
    assert_no_findings(&device, "never written");
}
