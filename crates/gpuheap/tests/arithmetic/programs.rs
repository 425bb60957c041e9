//! Random programs of arithmetic, compared with `ndarray`.

use gpuheap::emu::Schedule;
use gpuheap::{Device, MemoryKind, PoolKind, SharedArray};
use ndarray::{Array2, Axis, Ix2, s};
use proptest::prelude::*;

use crate::support::{assert_all_returned, device, heap, on_real_gpu};

const STREAMS: usize = 2;
const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned];
const MOST: usize = 12;

#[derive(Clone, Debug)]
enum Action {
    Create { rows: usize, columns: usize, stream: usize, kind: usize },
    Combine { op: u8, left: usize, right: usize },
    InPlace { op: u8, left: usize, right: usize },
    Number { op: u8, index: usize, number: i32 },
    Compare { left: usize, number: i32 },
    Slice { index: usize, row: (usize, isize), column: (usize, isize) },
    Write { to: usize, from: usize, step: isize },
    Transposed { index: usize },
    Sum { index: usize, axis: usize },
    Cast { index: usize },
    Hand { index: usize, stream: usize },
    Drop { index: usize },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let (i, op, stream) = (any::<usize>, 0_u8..4, 0..STREAMS);
    let (n, step) = (any::<i32>, prop_oneof![Just(1_isize), Just(2), Just(-1), Just(-3)]);
    let length = prop_oneof![2 => Just(1_usize), 4 => Just(5), 1 => 0_usize..40];
    let action = prop_oneof![
        5 => (length.clone(), length, stream.clone(), 0..KINDS.len())
            .prop_map(|(rows, columns, stream, kind)| Action::Create { rows, columns, stream, kind }),
        5 => (op.clone(), i(), i()).prop_map(|(op, left, right)| Action::Combine { op, left, right }),
        4 => (op.clone(), i(), i()).prop_map(|(op, left, right)| Action::InPlace { op, left, right }),
        2 => (op, i(), n()).prop_map(|(op, index, number)| Action::Number { op, index, number }),
        1 => (i(), n()).prop_map(|(left, number)| Action::Compare { left, number }),
        2 => (i(), (i(), step.clone()), (i(), step.clone()))
            .prop_map(|(index, row, column)| Action::Slice { index, row, column }),
        2 => (i(), i(), step).prop_map(|(to, from, step)| Action::Write { to, from, step }),
        1 => i().prop_map(|index| Action::Transposed { index }),
        2 => (i(), 0_usize..2).prop_map(|(index, axis)| Action::Sum { index, axis }),
        1 => i().prop_map(|index| Action::Cast { index }),
        2 => (i(), stream).prop_map(|(index, stream)| Action::Hand { index, stream }),
        2 => i().prop_map(|index| Action::Drop { index }),
    ];
    prop::collection::vec(action, 1..40)
}

type Held = (SharedArray<i32, Ix2>, Array2<i32>);

fn on_host(op: u8, left: i32, right: i32) -> i32 {
    match op {
        0 => left.wrapping_add(right),
        1 => left.wrapping_sub(right),
        2 => left.wrapping_mul(right),
        _ if right == 0 => 0,
        _ => left.wrapping_div(right),
    }
}

/// Combines two arrays on the host; `None` if the shapes do not match.
fn combined(op: u8, left: &Array2<i32>, right: &Array2<i32>) -> Option<Array2<i32>> {
    let go = |one: usize, other: usize| match (one, other) {
        (one, other) if one == other => Some(one),
        (1, other) => Some(other),
        (one, 1) => Some(one),
        _ => None,
    };
    let shape = (go(left.nrows(), right.nrows())?, go(left.ncols(), right.ncols())?);
    let (left, right) = (left.broadcast(shape)?, right.broadcast(shape)?);
    Some(Array2::from_shape_fn(shape, |at| on_host(op, left[at], right[at])))
}

fn run(device: &Device, pool: PoolKind, actions: &[Action]) {
    let heap = heap(device, pool);
    let streams = [(); STREAMS].map(|()| device.stream().unwrap());
    let mut held: Vec<Held> = Vec::new();
    for (number, action) in actions.iter().enumerate() {
        if let Action::Create { rows, columns, stream, kind } = *action {
            let host = Array2::from_shape_fn((rows, columns), |(i, j)| {
                (number * 1_000_003 + i * 77_773 + j * 31) as i32 - 99
            });
            let target = heap.on(&streams[stream]).kind(KINDS[kind]);
            held.push((target.array(&host).unwrap().into_shared(), host));
            continue;
        }
        let Some(last) = held.len().checked_sub(1) else { continue };
        let at = |index: usize| index % (last + 1);
        let new: Option<Held> = match *action {
            Action::Create { .. } => None,
            Action::Combine { op, left, right } => {
                let ((a, left), (b, right)) = (&held[at(left)], &held[at(right)]);
                let found = match op {
                    0 => a + b,
                    1 => a - b,
                    2 => a * b,
                    _ => a / b,
                };
                let expected = combined(op, left, right);
                assert_eq!(found.is_ok(), expected.is_some());
                expected.map(|host| (found.unwrap().into_shared(), host))
            }
            Action::InPlace { op, left, right } => {
                let (b, right) = held[at(right)].clone();
                let (a, left) = &mut held[at(left)];
                let done = match op {
                    0 => a.add_assign(&b),
                    1 => a.sub_assign(&b),
                    2 => a.mul_assign(&b),
                    _ => a.div_assign(&b),
                };
                let expected = combined(op, left, &right).filter(|one| one.dim() == left.dim());
                assert_eq!(done.is_ok(), expected.is_some());
                *left = expected.unwrap_or_else(|| left.clone());
                None
            }
            Action::Number { op, index, number } => {
                let (a, host) = &held[at(index)];
                let found = match op {
                    0 => number + a,
                    1 => number - a,
                    2 => number * a,
                    _ => number / a,
                };
                let host = host.mapv(|one| on_host(op, number, one));
                Some((found.unwrap().into_shared(), host))
            }
            Action::Compare { left, number } => {
                let (a, host) = &held[at(left)];
                let less = a.less(number).unwrap();
                assert_eq!(
                    less.sum().unwrap(),
                    host.iter().filter(|one| **one < number).count() as u64
                );
                None
            }
            Action::Slice { index, row, column } => {
                let (a, host) = &held[at(index)];
                let (from_row, from_column) =
                    (row.0 % (host.nrows() + 1), column.0 % (host.ncols() + 1));
                let slice = s![from_row..;row.1, from_column..;column.1];
                Some((a.copy_slice(slice).unwrap().into_shared(), host.slice(slice).to_owned()))
            }
            Action::Write { to, from, step } => {
                let (b, source) = held[at(from)].clone();
                let is_itself = at(from) == at(to);
                let (a, host) = &mut held[at(to)];
                let slice = s![..;step, ..];
                let done = a.write_slice(slice, &b);
                let mut part = host.slice_mut(slice);
                match source.broadcast(part.raw_dim()) {
                    Some(_) if is_itself && !source.is_empty() => assert!(done.is_err()),
                    Some(source) => {
                        done.unwrap();
                        part.assign(&source);
                    }
                    None => assert!(done.is_err()),
                }
                None
            }
            Action::Transposed { index } => {
                let (a, host) = &held[at(index)];
                Some((a.copy_transposed().unwrap().into_shared(), host.t().to_owned()))
            }
            Action::Sum { index, axis } => {
                let (a, host) = &held[at(index)];
                let sums = host.mapv(i64::from).sum_axis(Axis(axis));
                assert_eq!(a.sum_axis(axis).unwrap().to_ndarray().unwrap(), sums);
                assert_eq!(a.max().ok(), host.iter().max().copied());
                None
            }
            Action::Cast { index } => {
                let (a, host) = &held[at(index)];
                let there = a.cast::<i16>().unwrap().cast::<i32>().unwrap();
                Some((there.into_shared(), host.mapv(|one| i32::from(one as i16))))
            }
            Action::Hand { index, stream } => {
                held[at(index)].0.device_ptr(&streams[stream]).unwrap();
                None
            }
            Action::Drop { index } => {
                held.swap_remove(at(index));
                None
            }
        };
        // Shapes of products grow, so large results are dropped.
        held.extend(new.filter(|(_, host)| host.len() < 10_000));
        if held.len() > MOST {
            held.remove(0);
        }
    }
    for (array, host) in &held {
        assert_eq!(array.to_ndarray().unwrap(), host);
    }
    drop(held);
    assert_all_returned(device, &heap, pool.name());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if on_real_gpu() { 24 } else { 48 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_arrays_match_host(actions in actions(), seed in any::<u64>()) {
        for (pool, schedule) in [
            (PoolKind::Split, Schedule::Seeded(seed)),
            (PoolKind::Split, Schedule::OnDemand),
            (PoolKind::None, Schedule::Seeded(seed)),
        ] {
            run(&device(1 << 30, schedule), pool, &actions);
        }
    }
}
