//! Broadcast shapes, compared with `ndarray`.

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, Target};
use gpuheap_pool::testing::Random;
use ndarray::{Array, ArrayD, IxDyn, arr0, array};

use crate::reference::Bench;

fn counting(shape: &[usize], start: i32) -> ArrayD<i32> {
    let count = shape.iter().product::<usize>() as i32;
    Array::from_iter((0..count).map(|one| one * 3 + start)).into_shape_with_order(shape).unwrap()
}

/// Makes two shapes of up to five axes that can be broadcast together: some of their axes are 1 or
/// missing.
fn shapes(random: &mut Random) -> [Vec<usize>; 2] {
    let axes = random.below(6) as usize;
    let whole: Vec<usize> = (0..axes).map(|_| random.below(7) as usize).collect();
    [(); 2].map(|()| {
        let missing = if random.below(3) == 0 { random.below(axes as u64 + 1) as usize } else { 0 };
        let kept = whole[missing..].iter();
        kept.map(|length| if random.below(3) == 0 { 1 } else { *length }).collect()
    })
}

#[test]
fn random_shapes_broadcast_as_ndarray() {
    let bench = Bench::new(Schedule::Seeded(1));
    let target = bench.target();
    let mut random = Random(7);
    for _ in 0..300 {
        let [left, right] = shapes(&mut random);
        let (host_a, host_b) = (counting(&left, 1), counting(&right, -5));
        let what = format!("{left:?} {right:?}");
        let (a, b) = (target.array(&host_a).unwrap(), target.array(&host_b).unwrap());
        let expected = &host_a - &host_b;
        let found = (&a - &b).unwrap();
        assert_eq!(found.to_ndarray().unwrap(), expected, "{what}");
        let found = (a.copy().unwrap() - &b).unwrap();
        assert_eq!(found.to_ndarray().unwrap(), expected, "{what}: by value");
        let less = a.less(&b).unwrap().to_vec().unwrap();
        let wide = [host_a.broadcast(expected.dim()), host_b.broadcast(expected.dim())];
        let [wide_a, wide_b] = wide.map(Option::unwrap);
        let expected_less: Vec<bool> = wide_a.iter().zip(wide_b).map(|(a, b)| a < b).collect();
        assert_eq!(less, expected_less, "{what}");
        let mut in_place = a.copy().unwrap();
        let result = in_place.mul_assign(&b);
        assert_eq!(result.is_ok(), expected.shape() == left, "{what}: {result:?}");
        if result.is_ok() {
            assert_eq!(in_place.to_ndarray().unwrap(), &host_a * &host_b, "{what}: in place");
        }
        let repeated = a.broadcast_to(expected.raw_dim()).unwrap();
        assert_eq!(repeated.to_ndarray().unwrap(), wide_a, "{what}: repeated");
    }
    bench.end();
}

#[test]
fn mismatched_shapes_are_refused() {
    let bench = Bench::new(Schedule::Immediate);
    let target = bench.target();
    let row = target.array(&array![1_i64, 2, 3]).unwrap();
    let column = target.array(&array![[10], [20]]).unwrap();
    // The types of the operands imply that the result has two axes.
    let table: DeviceArray<i64, ndarray::Ix2> = (&row + &column).unwrap();
    assert_eq!(table.to_ndarray().unwrap(), array![[11, 12, 13], [21, 22, 23]]);
    let dynamic: DeviceArray<i64, IxDyn> =
        (&row.reshape(IxDyn(&[3, 1])).unwrap() + &column.reshape(2).unwrap()).unwrap();
    assert_eq!(dynamic.shape(), [3, 2]);
    let number = target.array(&arr0(5_i64)).unwrap();
    assert_eq!((&number * 2).unwrap().to_ndarray().unwrap(), arr0(10));
    assert_eq!((&row * &number).unwrap().to_vec().unwrap(), [5, 10, 15]);
    assert_eq!((&number - &number).unwrap().sum().unwrap(), 0);
    assert!((&row + &target.zeroed::<i64, _>(2).unwrap()).is_err());
    assert!((&table + &target.zeroed::<i64, _>((3, 2)).unwrap()).is_err());
    assert!(row.broadcast_to((2, 2)).is_err() && table.broadcast_to(3).is_err());
    // The broadcast array would be larger than any memory.
    let long = target.zeroed::<i64, _>((1 << 12, 1)).unwrap();
    let huge = long.broadcast_to((1 << 12, usize::MAX >> 12));
    assert!(huge.is_err());
    drop((row, column, table, dynamic, number, long));
    bench.end();
}

#[test]
fn empty_arrays_compute_like_others() {
    let bench = Bench::new(Schedule::Seeded(3));
    let target = bench.target();
    let empty = target.zeroed::<f32, _>((0, 3)).unwrap();
    let row = target.array(&[1.0_f32, 2.0, 3.0]).unwrap();
    assert_eq!((&empty + &row).unwrap().shape(), [0, 3]);
    assert_eq!((&row / &empty).unwrap().shape(), [0, 3]);
    assert_eq!(((-&empty).unwrap() * 2.0).unwrap().shape(), [0, 3]);
    assert_eq!(empty.less(&row).unwrap().shape(), [0, 3]);
    assert_eq!(empty.cast::<u8>().unwrap().shape(), [0, 3]);
    assert_eq!(empty.copy_transposed().unwrap().shape(), [3, 0]);
    let mut in_place = empty.copy().unwrap();
    in_place.add_assign(&row).unwrap();
    in_place.add_assign(1.0).unwrap();
    assert!((&empty + &target.zeroed::<f32, _>(2).unwrap()).is_err());
    assert!(empty.broadcast_to((4, 0, 3)).unwrap().is_empty());
    drop((empty, row, in_place));
    // The product of these axes would overflow without the axis of length 0.
    let long = target.zeroed::<f32, _>(ndarray::IxDyn(&[0, 1 << 40, 1 << 40])).unwrap();
    assert!(long.sum_axis(0).is_err() && long.mean_axis(0).is_err() && long.max_axis(0).is_err());
    assert_eq!(long.sum_axis(1).unwrap().shape(), [0, 1 << 40]);
    assert_eq!(long.sum().unwrap(), 0.0);
    let keys = target.zeroed::<u8, _>(0).unwrap();
    assert!(long.sum_by_key(&keys, 3).is_err() && long.mean_by_key(&keys, 3).is_err());
    let back = ndarray::SliceInfoElem::Slice { start: 0, end: None, step: -1 };
    let slice = [back, ndarray::SliceInfoElem::Index(-1), back];
    assert_eq!(long.copy_slice(&slice[..]).unwrap().shape(), [0, 1 << 40]);
    drop((long, keys));
    bench.end();
}

/// Tests shapes with more elements than a kernel with 32-bit indices can address, so the work is
/// split. The elements are bytes, to save memory.
#[test]
fn more_elements_than_32_bits_count() {
    if !crate::support::on_real_gpu() {
        return;
    }
    let bench = Bench::new(Schedule::Immediate);
    let target: Target = bench.target();
    let (rows, columns) = (70_001, 65_537);
    let a = target.filled((rows, columns), 3_u8).unwrap();
    let row: Vec<u8> = (0..columns).map(|column| column as u8).collect();
    let b = target.array(&row).unwrap();
    let sum = (&a + &b).unwrap();
    for at in [0, rows / 2, rows - 1] {
        let expected: Vec<u8> = row.iter().map(|one| one.wrapping_add(3)).collect();
        assert!(sum.index(at).unwrap().to_vec().unwrap() == expected, "row {at}");
    }
    let flat = (&sum * 2).unwrap();
    let last = flat.index(rows - 1).unwrap().to_vec().unwrap();
    assert!(
        last.iter().zip(&row).all(|(found, one)| *found == one.wrapping_add(3).wrapping_mul(2))
    );
    assert_eq!(a.sum().unwrap(), 3 * rows as u64 * columns as u64);
    assert_eq!(a.sum_axis(0).unwrap().to_vec().unwrap(), vec![3 * rows as u64; columns]);
    drop((a, b, sum, flat));
    bench.end();
}
