//! Tests how `adapt` copies each kind of structure to the device and back.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use gpuheap::adapt::Leaf;
use gpuheap::emu::Schedule;
use gpuheap::{
    Device, DeviceArray, Diagonal, Error, Heap, Host, LowerTriangular, MemoryKind, PoolKind,
    Symmetric, Target, Transposed, Triangle, UpperTriangular,
};
use ndarray::{Array, Array1, Array2, ArrayD, Ix1, Ix2, IxDyn, arr0, arr1, arr2, s};
use num_complex::Complex;

use crate::support::{assert_all_returned, device, heap};

const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned];

/// Runs a test with a target of every kind of memory. Asserts that all memory is returned.
fn on_every_kind(test: impl Fn(&Target) -> Result<(), Error>) {
    let device: Device = device(1 << 30, Schedule::Seeded(3));
    let heap: Heap = heap(&device, PoolKind::Split);
    for kind in KINDS {
        test(&heap.target().unwrap().kind(kind)).unwrap();
        assert_all_returned(&device, &heap, kind.name());
    }
}

#[test]
fn many_elements_are_an_array() {
    on_every_kind(|target| {
        let of_vector: DeviceArray<i64> = target.adapt(&vec![1_i64, 2])?;
        let of_slice: DeviceArray<u8> = target.adapt(&[1_u8, 2, 3][..])?;
        let of_array: DeviceArray<bool> = target.adapt(&[true, false])?;
        let of_arrays: DeviceArray<[f32; 2]> = target.adapt(&vec![[1.0_f32, 2.0]])?;
        let of_nothing: DeviceArray<f64> = target.adapt(&Vec::<f64>::new())?;
        assert_eq!(of_vector.kind(), target.memory_kind());
        assert_eq!(of_vector.to_vec()?, [1, 2]);
        assert_eq!(of_slice.to_vec()?, [1, 2, 3]);
        assert_eq!(of_array.to_vec()?, [true, false]);
        assert_eq!(of_arrays.to_vec()?, [[1.0, 2.0]]);
        assert!(of_nothing.to_vec()?.is_empty());
        assert_eq!(Host.adapt(&of_vector)?, arr1(&[1_i64, 2]));
        // A value that is on the host already does not change.
        assert_eq!(Host.adapt(&vec![1_i32, 2])?, [1, 2]);
        assert_eq!(Host.adapt(&[1_i32, 2])?, [1, 2]);
        Ok(())
    });
}

#[test]
fn arrays_of_ndarray_keep_their_shape() {
    on_every_kind(|target| {
        let matrix = Array2::from_shape_fn((3, 4), |(row, column)| (10 * row + column) as i32);
        let up: DeviceArray<i32, Ix2> = target.adapt(&matrix)?;
        assert_eq!((up.shape(), Host.adapt(&up)?), (&[3, 4][..], matrix.clone()));
        // Tests another layout, a window, an array without axes, and arrays of dynamic dimension.
        assert_eq!(Host.adapt(&target.adapt(&matrix.t())?)?, matrix.t());
        let window = matrix.slice(s![1.., ..;2]);
        assert_eq!(Host.adapt(&target.adapt(&window)?)?, window);
        assert_eq!(Host.adapt(&target.adapt(&arr0(7_u8))?)?, arr0(7));
        let any: DeviceArray<f64, IxDyn> = target.adapt(&ArrayD::<f64>::zeros(vec![2, 1, 2]))?;
        assert_eq!(Host.adapt(&any)?, ArrayD::<f64>::zeros(vec![2, 1, 2]));
        assert_eq!(Host.adapt(&matrix.view())?, matrix);
        // In an array of arrays, each inner array is copied to the device.
        let arrays: Array1<Array1<u8>> = arr1(&[1_u8, 2]).mapv(|value| arr1(&[value, value]));
        let up: Array<DeviceArray<u8>, Ix1> = target.adapt(&arrays)?;
        assert_eq!(up[1].to_vec()?, [2, 2]);
        assert_eq!(Host.adapt(&up)?, arrays);
        Ok(())
    });
}

#[test]
fn structures_of_the_standard_library() {
    on_every_kind(|target| {
        let nested = vec![Some(vec![1_u8]), None, Some(vec![2, 3])];
        let up: Vec<Option<DeviceArray<u8>>> = target.adapt(&nested)?;
        assert!(up[1].is_none());
        let down: Vec<Option<Array1<u8>>> = Host.adapt(&up)?;
        assert_eq!(down, [Some(arr1(&[1])), None, Some(arr1(&[2, 3]))]);

        let fixed: [DeviceArray<u16>; 2] = target.adapt(&[vec![1_u16], vec![2, 3]])?;
        assert_eq!(Host.adapt(&fixed)?, [arr1(&[1]), arr1(&[2, 3])]);

        let boxed: Box<DeviceArray<u8>> = target.adapt(&Box::new(vec![5_u8]))?;
        assert_eq!(*Host.adapt(&boxed)?, arr1(&[5]));
        let boxed: Box<DeviceArray<u8>> = target.adapt::<Box<[u8]>>(&vec![5_u8].into())?;
        assert_eq!(boxed.to_vec()?, [5]);

        let (host, count) = (vec![1.5], 3_usize);
        let of_references: (DeviceArray<f64>, usize) = target.adapt(&(&host, &&count))?;
        assert_eq!((of_references.0.to_vec()?, of_references.1), (host, 3));
        Ok(())
    });
}

#[test]
fn pointers_results_and_maps() {
    on_every_kind(|target| {
        let shared = Rc::new(vec![1_u8, 2]);
        let (one, other) = target.adapt(&(shared.clone(), Arc::new(vec![3_i64])))?;
        let _: (&Rc<DeviceArray<u8>>, &Arc<DeviceArray<i64>>) = (&one, &other);
        assert_eq!(
            (Host.adapt(&one)?, Host.adapt(&other)?),
            (arr1(&[1, 2]).into(), arr1(&[3]).into())
        );
        // Two handles to one value become two values.
        let up = target.adapt(&vec![shared.clone(), shared])?;
        assert!(!Rc::ptr_eq(&up[0], &up[1]));

        let results = vec![Ok(vec![1_u8]), Err("missing")];
        let up: Vec<Result<DeviceArray<u8>, &str>> = target.adapt(&results)?;
        assert_eq!(Host.adapt(&up)?, [Ok(arr1(&[1])), Err("missing")]);

        let sorted = BTreeMap::from([(2, vec![1.5]), (1, vec![])]);
        let up: BTreeMap<i32, DeviceArray<f32>> = target.cu(&sorted)?;
        assert_eq!(Host.adapt(&up)?, BTreeMap::from([(1, arr1(&[])), (2, arr1(&[1.5]))]));

        let named =
            HashMap::from([("weights".to_owned(), vec![1.5_f64]), ("bias".to_owned(), vec![])]);
        let up: HashMap<String, DeviceArray<f64>> = target.adapt(&named)?;
        let down: HashMap<String, Array1<f64>> = Host.adapt(&up)?;
        assert_eq!((down.len(), &down["weights"]), (2, &arr1(&[1.5])));
        Ok(())
    });
}

#[test]
fn tuples_of_up_to_twelve() {
    on_every_kind(|target| {
        let (only,): (DeviceArray<u8>,) = target.adapt(&(vec![1_u8],))?;
        assert_eq!(only.to_vec()?, [1]);
        let a = |n: u8| vec![n];
        let twelve = (a(1), a(2), a(3), a(4), a(5), a(6), a(7), a(8), a(9), a(10), 'x', a(12));
        let up = target.adapt(&twelve)?;
        assert_eq!((up.9.to_vec()?, up.10, up.11.to_vec()?), (vec![10], 'x', vec![12]));
        let down = Host.adapt(&up)?;
        assert_eq!((down.0, down.8, down.11), (arr1(&[1]), arr1(&[9]), arr1(&[12])));
        // A tuple that contains an array is a structure. This is a vector of such tuples.
        let up: Vec<(DeviceArray<u8>, f64)> = target.adapt(&vec![(a(1), 0.5)])?;
        assert_eq!(Host.adapt(&up)?, [(arr1(&[1]), 0.5)]);
        Ok(())
    });
}

#[test]
fn other_values_stay_unchanged() {
    on_every_kind(|target| {
        let values = (1_i8, 2_u128, 1.5_f64, true, 'x', String::from("name"), ());
        assert_eq!(target.adapt(&values)?, values);
        assert_eq!(target.cu(&values)?, values);
        assert_eq!(target.narrow(&values)?, values);
        assert_eq!(Host.adapt(&values)?, values);
        let values = (0..3, 1.., 2..=5, ..7, .., PhantomData::<u8>, Complex::new(1_u8, 2));
        assert_eq!(target.cu(&values)?, values);
        assert_eq!(target.adapt(&vec![String::from("a")])?, ["a"]);
        Ok(())
    });
}

#[test]
fn wrappers_are_kept() {
    on_every_kind(|target| {
        let matrix = arr2(&[[1, 2], [3, 4]]);
        let up: Diagonal<DeviceArray<i32>> = target.adapt(&Diagonal(arr1(&[1, 2])))?;
        assert_eq!(Host.adapt(&up)?, Diagonal(arr1(&[1, 2])));
        let up: UpperTriangular<DeviceArray<i32, _>> = target.adapt(&UpperTriangular(&matrix))?;
        assert_eq!(Host.adapt(&up)?, UpperTriangular(matrix.clone()));
        let up: LowerTriangular<DeviceArray<i32, _>> = target.adapt(&LowerTriangular(&matrix))?;
        assert_eq!(Host.adapt(&up)?, LowerTriangular(matrix.clone()));
        let up: Transposed<DeviceArray<i32, _>> = target.adapt(&Transposed(&matrix))?;
        assert_eq!(Host.adapt(&up)?, Transposed(matrix.clone()));
        let up: Symmetric<DeviceArray<i32, _>> = target.adapt(&Symmetric::from_lower(&matrix))?;
        assert_eq!(up.from, Triangle::Lower);
        assert_eq!(Host.adapt(&up)?, Symmetric::from_lower(matrix.clone()));
        // Tests wrappers of wrappers, and a vector of them.
        let up: Vec<Transposed<UpperTriangular<DeviceArray<i32, _>>>> =
            target.adapt(&vec![Transposed(UpperTriangular(&matrix))])?;
        assert_eq!(Host.adapt(&up)?, [Transposed(UpperTriangular(matrix))]);
        Ok(())
    });
}

#[test]
fn elements_of_other_crates_are_leaves() {
    on_every_kind(|target| {
        let numbers = vec![std::num::Wrapping(1_u32), std::num::Wrapping(2)];
        let up: (DeviceArray<std::num::Wrapping<u32>>, u8) =
            target.cu(&(Leaf(numbers.clone()), 1_u8))?;
        assert_eq!(Host.adapt(&up)?, (Array1::from_vec(numbers), 1));
        Ok(())
    });
}

#[test]
fn failed_adapt_frees_everything() {
    let device = device(1 << 30, Schedule::OnDemand);
    let heap = Heap::builder(&device).pool(PoolKind::Split).hard_limit(4 << 20).build().unwrap();
    let target = heap.target().unwrap();
    let small: Vec<Vec<u8>> = (0..300).map(|_| vec![1; 10_000]).collect();
    let line = line!() + 1;
    let error = target.adapt(&(small.clone(), vec![1_u8; 2 << 20], small)).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_all_returned(&device, &heap, &format!("line {line}"));
}
