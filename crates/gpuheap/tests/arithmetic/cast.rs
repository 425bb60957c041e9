//! Casts of each type to each other.

use gpuheap::arithmetic::Scalar;
use gpuheap::emu::Schedule;
use gpuheap::{Device, DeviceArray, MemoryKind};

use crate::reference::{Bench, Reference, assert_same, values};

macro_rules! casts {
    ($($from:ident)*) => {
        mod from {
            use super::*;
            $(
                #[test]
                fn $from() {
                    let bench = Bench::new(Schedule::Seeded(1));
                    let target = bench.target();
                    let mut host = values::<$from>(20_011, 3);
                    // Adds whole and half numbers near powers of two: the ends of integers' ranges.
                    for power in 0..64 {
                        let near = 2.0_f64.powi(power);
                        for off in [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5] {
                            host.extend([(near + off) as $from, (-near + off) as $from]);
                        }
                    }
                    let whole = target.array(&host).unwrap();
                    let a = whole.slice(1..).unwrap();
                    casts!(@to a, host[1..], $from: i8 i16 i32 i64 isize u8 u16 u32 u64 usize f32 f64);
                    let found = a.cast::<bool>().unwrap().to_vec().unwrap();
                    let expected: Vec<bool> = host[1..].iter().map(|one| *one != (0 as $from)).collect();
                    assert!(found == expected, "to bool");
                    drop(whole);
                    bench.end();
                }
            )*
        }
    };
    (@to $a:ident, $host:expr, $from:ident: $($to:ident)*) => {
        $(
            let expected: Vec<$to> = $host.iter().map(|one| *one as $to).collect();
            let found = $a.cast::<$to>().unwrap().to_vec().unwrap();
            assert_same(&found, &expected, stringify!($to));
        )*
    };
}

casts!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize f32 f64);

#[test]
fn a_bool_is_0_or_1() {
    fn check<U: Scalar + PartialEq + std::fmt::Debug>(a: &DeviceArray<bool>, zero: U, one: U) {
        assert_eq!(a.cast::<U>().unwrap().to_vec().unwrap(), [one, zero, one]);
    }
    let bench = Bench::new(Schedule::Seeded(2));
    let a = bench.target().array(&[true, false, true]).unwrap();
    check(&a, 0_i8, 1);
    check(&a, 0_u16, 1);
    check(&a, 0_i64, 1);
    check(&a, 0.0_f32, 1.0);
    check(&a, 0.0_f64, 1.0);
    check(&a, false, true);
    drop(a);
    bench.end();
}

/// `cu` and `narrow` convert device arrays on the device. The results equal a conversion on the
/// host.
#[test]
fn device_cast_matches_host() {
    fn check<T: Reference>(bench: &Bench, from: MemoryKind, to: MemoryKind)
    where
        DeviceArray<T>:
            gpuheap::Adapt<gpuheap::adapt::Upload<gpuheap::adapt::Cu>, Output = DeviceArray<f32>>,
        Vec<T>:
            gpuheap::Adapt<gpuheap::adapt::Upload<gpuheap::adapt::Cu>, Output = DeviceArray<f32>>,
    {
        let target = bench.target();
        let host = values::<T>(30_000, 4);
        let a = target.kind(from).array(&host).unwrap();
        let reads = || bench.device.emulator().map(|one| one.calls_of("cuMemcpyDtoHAsync_v2"));
        let before = reads();
        let (found, used) = bench.allocated(|| target.kind(to).cu(&a).unwrap());
        assert_eq!((reads(), used.allocations, found.kind()), (before, 1, to));
        let expected = target.cu(&host).unwrap().to_vec().unwrap();
        for (found, expected) in found.to_vec().unwrap().iter().zip(&expected) {
            assert!(found.is_same(*expected), "{from} to {to}: {found}, not {expected}");
        }
    }
    let bench = Bench::new(Schedule::Seeded(3));
    let kinds = [MemoryKind::Device, MemoryKind::Pinned];
    for (from, to) in kinds.into_iter().flat_map(|from| kinds.map(|to| (from, to))) {
        check::<i8>(&bench, from, to);
        check::<u32>(&bench, from, to);
        check::<i64>(&bench, from, to);
        check::<usize>(&bench, from, to);
        check::<f64>(&bench, from, to);
    }
    let target = bench.target();
    let wide = target.array(&[0.1_f64, 1e300, f64::NAN]).unwrap();
    let narrow: DeviceArray<f32> = target.narrow(&wide).unwrap();
    let expected: [f32; 3] = [0.1, f32::INFINITY, f32::NAN];
    assert!(narrow.to_vec().unwrap().iter().zip(expected).all(|(one, other)| one.is_same(other)));
    // If no kernel supports a type, or an array is on another device, the cast is done on the host.
    let large = target.array(&[u128::MAX, 7]).unwrap();
    assert_eq!(target.cu(&large).unwrap().to_vec().unwrap(), [u128::MAX as f32, 7.0]);
    let far = Device::open("emulated:1GiB").unwrap().heap().unwrap().target().unwrap();
    assert_eq!(far.cu(&wide).unwrap().to_vec().unwrap()[..2], [0.1, f32::INFINITY]);
    drop((wide, narrow, large));
    bench.end();
}

#[test]
fn nonzero_bytes_cast_to_true() {
    let bench = Bench::new(Schedule::Seeded(2));
    let target = bench.target();
    let bytes = target.array(&[0_u8, 1, 2, 255]).unwrap();
    let as_written = bytes.reinterpret::<bool>().unwrap();
    assert!(as_written.to_vec().is_err());
    let cast = as_written.cast::<bool>().unwrap();
    assert_eq!(cast.to_vec().unwrap(), [false, true, true, true]);
    drop((bytes, cast));
    bench.end();
}
