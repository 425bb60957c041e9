//! Random programs over arrays on several streams, compared with a model on the host.

use gpuheap::emu::Schedule;
use gpuheap::{Device, PoolKind, SharedArray, Stream};
use ndarray::{Array2, Ix2, s};
use proptest::prelude::*;

use crate::create::KINDS;
use crate::support::{assert_all_returned, device, heap, on_real_gpu};

#[derive(Clone, Debug)]
enum Action {
    Create { rows: usize, columns: usize, stream: usize, kind: usize },
    Fill { index: usize, value: u16 },
    FillRows { index: usize, from: usize, to: usize },
    Write { index: usize },
    Copy { index: usize, stream: usize, kind: usize },
    CopyFrom { to: usize, from: usize },
    Transposed { index: usize },
    Slice { index: usize, from: usize, to: usize },
    Hand { index: usize, stream: usize },
    Read { index: usize },
    FreeEarly { index: usize },
    Drop { index: usize },
}

const STREAMS: usize = 3;

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let (i, stream, kind) = (any::<usize>, 0..STREAMS, 0..KINDS.len());
    let rows = prop_oneof![4 => 0_usize..6, 1 => 100_usize..2000];
    let action = prop_oneof![
        6 => (rows, 0_usize..5, stream.clone(), kind.clone())
            .prop_map(|(rows, columns, stream, kind)| Action::Create { rows, columns, stream, kind }),
        2 => (i(), any::<u16>()).prop_map(|(index, value)| Action::Fill { index, value }),
        3 => (i(), i(), i()).prop_map(|(index, from, to)| Action::FillRows { index, from, to }),
        2 => i().prop_map(|index| Action::Write { index }),
        3 => (i(), stream.clone(), kind)
            .prop_map(|(index, stream, kind)| Action::Copy { index, stream, kind }),
        3 => (i(), i()).prop_map(|(to, from)| Action::CopyFrom { to, from }),
        1 => i().prop_map(|index| Action::Transposed { index }),
        2 => (i(), i(), i()).prop_map(|(index, from, to)| Action::Slice { index, from, to }),
        3 => (i(), stream).prop_map(|(index, stream)| Action::Hand { index, stream }),
        2 => i().prop_map(|index| Action::Read { index }),
        1 => i().prop_map(|index| Action::FreeEarly { index }),
        3 => i().prop_map(|index| Action::Drop { index }),
    ];
    prop::collection::vec(action, 1..60)
}

struct Held {
    array: SharedArray<u16, Ix2>,
    /// Contents expected by the host; `None` once the array was freed early.
    host: Option<Array2<u16>>,
}

/// Returns two indices up to `length`, in order.
fn range(from: usize, to: usize, length: usize) -> std::ops::Range<usize> {
    let (from, to) = (from % (length + 1), to % (length + 1));
    from.min(to)..from.max(to)
}

fn run(device: &Device, pool: PoolKind, actions: &[Action]) {
    let heap = heap(device, pool);
    let streams: Vec<Stream> = (0..STREAMS).map(|_| device.stream().unwrap()).collect();
    let mut held: Vec<Held> = Vec::new();
    for (number, action) in actions.iter().enumerate() {
        let tag = number as u16 + 1;
        if let Action::Create { rows, columns, stream, kind } = *action {
            let host =
                Array2::from_shape_fn((rows, columns), |(i, j)| tag * 97 + (i * 7 + j) as u16);
            let target = heap.on(&streams[stream]).kind(KINDS[kind]);
            held.push(Held { array: target.array(&host).unwrap().into_shared(), host: Some(host) });
            continue;
        }
        let Some(last) = held.len().checked_sub(1) else { continue };
        let at = |index: usize| index % (last + 1);
        match *action {
            Action::Create { .. } => {}
            Action::Fill { index, value } => {
                let Held { array, host } = &mut held[at(index)];
                assert_eq!(array.fill(value).is_ok(), host.is_some());
                host.iter_mut().for_each(|host| host.fill(value));
            }
            Action::FillRows { index, from, to } => {
                let Held { array, host: Some(host) } = &mut held[at(index)] else { continue };
                let rows = range(from, to, host.nrows());
                array.slice_mut(rows.clone()).unwrap().fill(tag).unwrap();
                host.slice_mut(s![rows, ..]).fill(tag);
            }
            Action::Write { index } => {
                let Held { array, host: Some(host) } = &mut held[at(index)] else { continue };
                host.iter_mut().enumerate().for_each(|(n, element)| *element = tag ^ n as u16);
                array.write_from(host).unwrap();
            }
            Action::Copy { index, stream, kind } => {
                let Held { array, host } = &held[at(index)];
                let copied = array.copy_to(&heap.on(&streams[stream]).kind(KINDS[kind]));
                match host.clone() {
                    None => assert!(copied.unwrap_err().is_freed()),
                    host => held.push(Held { array: copied.unwrap().into_shared(), host }),
                }
            }
            Action::CopyFrom { to, from } => {
                let from = &held[at(from)];
                let (source, host) = (from.array.clone(), from.host.clone());
                let to = &mut held[at(to)];
                let (Some(new), Some(old)) = (host, &mut to.host) else { continue };
                if new.len() != old.len() {
                    assert!(to.array.copy_from(&source).is_err());
                    continue;
                }
                to.array.copy_from(&source).unwrap();
                *old = new.into_shape_with_order(old.raw_dim()).unwrap();
            }
            Action::Transposed { index } => {
                let Held { array, host: Some(host) } = held.swap_remove(at(index)) else {
                    continue;
                };
                let shape = (host.ncols(), host.nrows());
                let array = array.into_shape(shape).unwrap();
                held.push(Held { array, host: Some(host.into_shape_with_order(shape).unwrap()) });
            }
            Action::Slice { index, from, to } => {
                let Held { array, host: Some(host) } = held.swap_remove(at(index)) else {
                    continue;
                };
                let rows = range(from, to, host.nrows());
                let array = array.into_slice(rows.clone()).unwrap();
                held.push(Held { array, host: Some(host.slice(s![rows, ..]).to_owned()) });
            }
            Action::Hand { index, stream } => {
                let Held { array, host } = &held[at(index)];
                assert_eq!(array.device_ptr(&streams[stream]).is_ok(), host.is_some());
            }
            Action::Read { index } => check(&held[at(index)]),
            Action::FreeEarly { index } => {
                let Held { array, host } = &mut held[at(index)];
                assert_eq!(array.free_early().unwrap(), host.take().is_some());
            }
            Action::Drop { index } => drop(held.swap_remove(at(index))),
        }
    }
    held.iter().for_each(check);
    drop(held);
    assert_all_returned(device, &heap, pool.name());
}

fn check(held: &Held) {
    let printed = format!("{:?}", held.array);
    match &held.host {
        Some(host) => assert_eq!(held.array.to_ndarray().unwrap(), host, "{printed}"),
        None => assert!(held.array.to_vec().unwrap_err().is_freed() && printed.ends_with("freed")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if on_real_gpu() { 24 } else { 64 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_arrays_match_host(actions in actions(), seed in any::<u64>()) {
        let lag = Schedule::Lag(std::time::Duration::from_micros(seed % 50));
        for (pool, schedule) in [
            (PoolKind::Split, Schedule::Seeded(seed)),
            (PoolKind::Split, Schedule::OnDemand),
            (PoolKind::Binned, lag),
            (PoolKind::None, Schedule::Seeded(seed)),
        ] {
            run(&device(1 << 30, schedule), pool, &actions);
        }
    }
}
