//! Compares the ranges that launches report with the bytes that the launches use.

use std::collections::BTreeSet;

use gpuheap_kernels::{
    Arithmetic, ByKey, Fold, Launch, Memory, Operand, Reduction, Region, Type, arithmetic, cast,
    copy, group, reduce, take,
};

/// Memory that records the addresses of reads and writes. It stores nothing: every byte reads as 0.
#[derive(Default)]
struct Used {
    read: BTreeSet<u64>,
    written: BTreeSet<u64>,
}

impl Memory for Used {
    type Error = ();

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), ()> {
        into.fill(0);
        self.read.extend(address..address + into.len() as u64);
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), ()> {
        self.written.extend(address..address + from.len() as u64);
        Ok(())
    }
}

fn bytes(region: &Region) -> BTreeSet<u64> {
    let mut bytes = BTreeSet::new();
    let mut runs = 0;
    region.for_each_run(|at| {
        bytes.extend(at..at + region.run);
        runs += 1;
    });
    assert_eq!(runs, region.runs());
    if let Some((first, length)) = region.bounds() {
        assert_eq!(bytes.first(), Some(&first));
        assert_eq!(bytes.last(), Some(&(first + length - 1)));
    }
    bytes
}

fn check(launches: Vec<Launch>) {
    assert!(!launches.is_empty());
    for launch in launches {
        let mut used = Used::default();
        launch.kernel.run(launch.words.as_slice(), &mut used).unwrap();
        let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
        for access in launch.kernel.accesses(launch.words.as_slice()) {
            let into = if access.writes { &mut written } else { &mut read };
            into.extend(bytes(&access.region));
        }
        // `Kernel::run` may also read the gaps between elements. For an aggregation by key,
        // `accesses` also lists bytes that may stay untouched: the aggregates of groups without
        // rows, and the count of bad rows.
        let is_aggregate = launch.kernel.name().contains("_groups_");
        assert!(is_aggregate || used.read.is_superset(&read), "{launch:?}");
        assert!(is_aggregate || used.written == written, "{launch:?}");
        assert!(written.is_superset(&used.written), "{launch:?}");
        let mut copied = (BTreeSet::new(), BTreeSet::new());
        launch.kernel.for_each_copied(launch.words.as_slice(), |to, from, bytes| {
            copied.0.extend(to..to + bytes);
            copied.1.extend(from..from + bytes);
        });
        if launch.kernel.only_copies() {
            assert_eq!(copied, (written, read), "{launch:?}");
        } else {
            assert!(copied.0.is_empty());
        }
    }
}

#[test]
fn accesses_match_bytes_used() {
    let at = |address, strides| Operand::Array { address, strides };
    let add = |shape: &[usize], left, right| {
        check(arithmetic(Arithmetic::Add, Type::I32, shape, 0x1000, left, right));
    };
    add(&[100], at(0x9000, &[1]), at(0xa000, &[1]));
    add(&[100], at(0x9000, &[1]), Operand::Scalar(1));
    add(&[10, 10], at(0x9000, &[0, 1]), at(0xa000, &[1, 0]));
    add(&[10, 10], at(0x9800, &[-20, 2]), at(0xa000, &[10, 1]));
    check(cast(Type::U8, Type::F64, 77, 0x1000, 0x9000));
    check(copy(4, &[5, 6, 7], 0x5000, &[100, -10, 1], 0x9000, &[1, 5, 40]));
    check(copy(1, &[64, 3], 0x5000, &[4, 1], 0x9000, &[3, 1]));
    for (outer, n, inner) in [(3, 10, 1), (2, 9000, 1), (2, 300, 5), (2, 0, 3)] {
        check(reduce(Reduction::Sum, Type::I16, outer, n, inner, 0x100_0000, 0x9000));
    }
    check(take(4, 5, 0x1000, 0x9000, 1, 0xa000));
    let by = ByKey {
        fold: Fold::Squares,
        values: Some((Type::F32, 0x9000)),
        keys: (Type::I8, 0xa000),
        rows: 10,
        inner: 3,
        groups: 4,
        out: 0x1000,
        bad: Some(0xb000),
        valid: Some(0xc000),
        means: 0xd000,
        skips_nan: false,
    };
    check(group(&by));
    check(group(&ByKey { valid: None, bad: None, fold: Fold::Sum, ..by }));
    check(group(&ByKey { values: None, fold: Fold::Count, ..by }));
}

#[test]
fn bounds_stop_at_64_bits() {
    let region = |address, run, axes: &[(u64, i64)]| Region { address, run, axes: axes.to_vec() };
    assert_eq!(region(100, 4, &[(3, -8), (2, 100)]).bounds(), Some((84, 120)));
    assert_eq!(region(8, 4, &[(3, -8)]).bounds(), None);
    assert_eq!(region(u64::MAX - 2, 4, &[]).bounds(), None);
    assert_eq!(region(8, 4, &[(u64::MAX, i64::MAX)]).bounds(), None);
    assert_eq!(region(8, 4, &[(0, 8)]).bounds(), None);
    assert_eq!(region(8, 0, &[]).bounds(), None);
}
