//! Tests of handles that outlive their origin. They are dropped in every order, or forgotten.

use std::any::Any;

use gpuheap::emu::Schedule;
use gpuheap::{MemoryKind, PoolKind};

use crate::support::{KINDS, Neighbours, assert_clean, device, heap};

/// Calls `each` with every order of `left`.
fn orders(left: &mut Vec<usize>, order: &mut Vec<usize>, each: &mut dyn FnMut(&[usize])) {
    if left.is_empty() {
        return each(order);
    }
    for nth in 0..left.len() {
        let one = left.remove(nth);
        order.push(one);
        orders(left, order, each);
        order.pop();
        left.insert(nth, one);
    }
}

#[test]
fn objects_drop_in_any_order() {
    for (first, pool) in PoolKind::ALL.into_iter().enumerate() {
        let mut nth = 0;
        orders(&mut (0..6).collect(), &mut Vec::new(), &mut |order| {
            // Each order of drops is tested with one kind of memory in each pool. The kind changes
            // from pool to pool, so each order meets all kinds.
            let kind = KINDS[(first + nth) % KINDS.len()];
            nth += 1;
            let device = device(1 << 30, Schedule::Seeded(nth as u64));
            let emulator = device.emulator().unwrap().clone();
            let heap = heap(&device, pool);
            let stream = device.stream().unwrap();
            let mut array = heap.on(&stream).kind(kind).filled(5000, 7_u8).unwrap();
            array.slice_mut(1..).unwrap().fill(8).unwrap();
            let event = stream.record().unwrap();
            let block = heap.allocate(1 << 20, &stream).unwrap();
            let shared = array.into_shared();
            let mut things: Vec<Option<Box<dyn Any>>> = vec![
                Some(Box::new(device)),
                Some(Box::new((heap.register_reclaimer(|_| 0), heap))),
                Some(Box::new(stream)),
                Some(Box::new(shared.clone())),
                Some(Box::new(event)),
                Some(Box::new(block)),
            ];
            for one in order {
                things[*one] = None;
                assert_eq!(shared.slice(..2).unwrap().to_vec().unwrap(), [7, 8]);
            }
            assert_eq!(shared.copy().unwrap().sum().unwrap(), 7 + 4999 * 8);
            drop(shared);
            let findings = emulator.findings().unwrap();
            assert!(findings.is_empty(), "{pool}: {order:?}: {findings:#?}");
        });
    }
}

#[test]
fn forgotten_borrows_keep_nothing_but_themselves() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::OnDemand);
        let heap = heap(&device, pool);
        for kind in [MemoryKind::Pinned, MemoryKind::Unified] {
            let target = heap.target().unwrap().kind(kind);
            let (neighbours, mut victim) =
                Neighbours::around(&target, |target| target.filled(300, 1_u8).unwrap());
            for value in 2..5 {
                victim.as_mut_slice().unwrap().fill(value);
                std::mem::forget(victim.as_slice().unwrap());
                std::mem::forget(victim.as_mut_slice().unwrap());
                assert_eq!(victim.to_vec().unwrap(), [value; 300]);
                victim.fill(9).unwrap();
                assert_eq!(victim.as_slice().unwrap()[299], 9);
            }
            neighbours.check(pool.name());
            drop((neighbours, victim));
        }
        assert_clean(&device, &heap, pool.name());
    }
}

/// If a scope has ended, calls with its target, its batches or its handles return errors and have
/// no other effect.
#[test]
fn scope_end_frees_its_arrays() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::Immediate);
        let heap = heap(&device, pool);
        let rows = vec![[3_u8; 1000]; 4];
        let ((target, mut batches, shared, view), _) = heap.scope(|scope| {
            let target = scope.target().unwrap();
            let mut batches = target.batches(&rows).prefetch(2);
            std::mem::forget(batches.next());
            std::mem::forget(batches.next());
            let shared = target.filled(10, 1_u8).unwrap().into_shared();
            (target, batches, shared.clone(), shared.into_slice(1..).unwrap())
        });
        let (neighbours, ()) = Neighbours::around(&heap.target().unwrap(), |_| ());
        assert!(target.filled(1, 1_u8).is_err() && target.adapt(&vec![vec![1_u8]]).is_err());
        assert!(target.register(vec![1_u8]).is_err());
        assert!(batches.next().unwrap().is_err() && batches.next().unwrap().is_err());
        assert!(batches.next().is_none());
        assert!(shared.to_vec().unwrap_err().is_freed() && view.copy().unwrap_err().is_freed());
        assert!(!shared.free_early().unwrap());
        neighbours.check(pool.name());
        drop((neighbours, target, batches, shared, view));
        assert_clean(&device, &heap, pool.name());
    }
}
