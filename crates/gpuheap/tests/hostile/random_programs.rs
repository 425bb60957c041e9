//! Runs random programs that use the public interface. A model on the host contains every byte of
//! memory, and results are compared with the model.

mod arithmetic;
mod model;
mod world;

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytemuck::Zeroable;
use gpuheap::adapt::{Elements, Item, Plain};
use gpuheap::emu::Schedule;
use gpuheap::ndarray::{ArrayD, IxDyn, SliceInfoElem};
use gpuheap::{
    Advice, Block, Device, DeviceArray, DeviceView, DeviceViewMut, Error, Heap, Host, Limits,
    Location, MemoryKind, Meter, PoolKind, Scope, SharedArray, Stream, Target,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use model::Model;
use world::World;

use crate::support::{assert_clean, assert_no_findings, device, heap, two_devices};

/// A step of a program. It has an operation, and three numbers that the operation interprets.
type Step = (u8, u32, u32, u32);

/// A piece of memory, with the heap that owns it.
struct Memory {
    bytes: Vec<u8>,
    heap: usize,
    freed: bool,
}

type Shared = Rc<RefCell<Memory>>;

enum Held<T> {
    Owned(DeviceArray<T, IxDyn>),
    Shared(SharedArray<T, IxDyn>),
}

/// A handle, and its offset in a piece of memory.
struct Slot<T> {
    held: Held<T>,
    memory: Shared,
    offset: usize,
}

/// A slot of any type.
trait Thing: Any {
    fn act(self: Box<Self>, step: Step, world: &mut World<'_>) -> Vec<Box<dyn Thing>>;
    fn check(&self);
    fn keep(&self, scope: &Scope);
    fn memory(&self) -> &Shared;
}

fn elements<T: Model>(count: usize, seed: u64) -> Vec<T> {
    (0..count as u64).map(|nth| T::from_seed(seed.wrapping_add(nth * 7))).collect()
}

fn bytes_of<T: Model>(elements: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(elements).to_vec()
}

/// Returns the value of a call, or `None` if the call failed as expected. If `freed`, it has to
/// fail because the memory was freed. Otherwise it may fail because memory ran out.
fn unless_refused<R>(result: Result<R, Error>, freed: bool) -> Option<R> {
    match result {
        Ok(done) => {
            assert!(!freed, "freed memory was used");
            Some(done)
        }
        Err(error) if freed => {
            assert!(error.is_freed(), "{error}");
            None
        }
        Err(error) => {
            assert!(error.out_of_memory().is_some(), "{error}");
            None
        }
    }
}

impl<T: Model> Slot<T> {
    fn view(&self) -> DeviceView<'_, T, IxDyn> {
        match &self.held {
            Held::Owned(array) => array.view(),
            Held::Shared(array) => array.view(),
        }
    }

    fn view_mut(&mut self) -> DeviceViewMut<'_, T, IxDyn> {
        match &mut self.held {
            Held::Owned(array) => array.view_mut(),
            Held::Shared(array) => array.view_mut(),
        }
    }

    fn is_freed(&self) -> bool {
        self.memory.borrow().freed
    }

    fn len(&self) -> usize {
        self.view().len()
    }

    /// Returns the array's elements, or `None` if some bytes are not a valid element.
    fn model(&self) -> Option<Vec<T>> {
        let memory = self.memory.borrow();
        let bytes = &memory.bytes[self.offset..][..self.len() * size_of::<T>()];
        let read = |bytes| bytemuck::checked::try_pod_read_unaligned(bytes).ok();
        bytes.chunks_exact(size_of::<T>()).map(read).collect()
    }

    /// Returns the array's elements in their shape.
    fn host(&self) -> Option<ArrayD<T>> {
        let shape = IxDyn(self.view().shape());
        ArrayD::from_shape_vec(shape, self.model()?).ok()
    }

    fn is_tame(&self) -> bool {
        self.model().is_some_and(|all| all.into_iter().all(T::is_tame))
    }

    /// Writes elements into the model, from index `from` on.
    fn write(&self, from: usize, elements: &[T]) {
        let start = self.offset + from * size_of::<T>();
        let bytes = bytes_of(elements);
        self.memory.borrow_mut().bytes[start..start + bytes.len()].copy_from_slice(&bytes);
    }

    /// Returns a slot for the result of `owned` or `shared`, called with the handle. If the call
    /// fails, drops the handle. Only with `may_fail`, the call may fail.
    fn changed<U: Model>(
        self,
        forward: usize,
        owned: impl FnOnce(DeviceArray<T, IxDyn>) -> Result<DeviceArray<U, IxDyn>, Error>,
        shared: impl FnOnce(SharedArray<T, IxDyn>) -> Result<SharedArray<U, IxDyn>, Error>,
        may_fail: bool,
    ) -> Vec<Box<dyn Thing>> {
        let Slot { held, memory, offset } = self;
        let held = match held {
            Held::Owned(array) => owned(array).map(Held::Owned),
            Held::Shared(array) => shared(array).map(Held::Shared),
        };
        match held {
            Ok(held) => vec![Box::new(Slot { held, memory, offset: offset + forward })],
            Err(error) => {
                assert!(may_fail, "{error}");
                Vec::new()
            }
        }
    }

    fn reinterpreted<U: Model>(self) -> Vec<Box<dyn Thing>> {
        let bytes = self.view().shape().last().map_or(0, |last| last * size_of::<T>());
        // The model does not know the address of registered memory, so it cannot predict alignment
        // errors.
        let may_fail = !bytes.is_multiple_of(size_of::<U>())
            || self.view().ndim() == 0
            || !self.offset.is_multiple_of(align_of::<U>())
            || self.view().kind() == MemoryKind::Registered;
        self.changed::<U>(
            0,
            |array| array.into_reinterpreted(),
            |array| array.into_reinterpreted(),
            may_fail,
        )
    }
}

fn slot<T: Model>(
    world: &mut World<'_>,
    heap: usize,
    array: Option<DeviceArray<T, IxDyn>>,
    host: &[T],
) -> Vec<Box<dyn Thing>> {
    let Some(array) = array else { return Vec::new() };
    let memory = world.memory(heap, bytes_of(host));
    vec![Box::new(Slot { held: Held::Owned(array), memory, offset: 0 })]
}

impl<T: Model> Thing for Slot<T> {
    fn memory(&self) -> &Shared {
        &self.memory
    }

    fn keep(&self, scope: &Scope) {
        scope.keep(self.view());
    }

    fn check(&self) {
        let view = self.view();
        assert_eq!(view.is_freed(), self.is_freed());
        assert_eq!(format!("{view:?}").ends_with("freed"), self.is_freed());
        let read = view.to_vec();
        match self.model() {
            _ if self.is_freed() => assert!(read.unwrap_err().is_freed()),
            None => assert!(!read.unwrap_err().is_freed()),
            // Elements are compared by their bytes, because a NaN is not equal to itself.
            Some(model) => assert_eq!(bytes_of(&read.unwrap()), bytes_of(&model)),
        }
    }

    fn act(mut self: Box<Self>, step: Step, world: &mut World<'_>) -> Vec<Box<dyn Thing>> {
        let (op, a, b, c) = step;
        let (length, freed, heap) = (self.len(), self.is_freed(), self.memory.borrow().heap);
        let (from, to) = (a as usize % (length + 1), b as usize % (length + 1));
        let part = from.min(to)..from.max(to);
        let value = T::from_seed(u64::from(c));
        let mut more = Vec::new();
        match op % 28 {
            0 => self.check(),
            1 => {
                if unless_refused(self.view_mut().fill(value), freed).is_some() {
                    self.write(0, &vec![value; length]);
                }
            }
            2 => {
                let host: Vec<T> = elements(length, u64::from(c));
                if unless_refused(self.view_mut().write_from(&host), freed).is_some() {
                    self.write(0, &host);
                }
                assert!(self.view_mut().write_from(&elements::<T>(length + 1, 0)).is_err());
            }
            3 => {
                let flat = self.view_mut().into_shape(length).unwrap();
                let filled = flat.into_slice(part.clone()).unwrap().fill(value);
                if unless_refused(filled, freed).is_some() {
                    self.write(part.start, &vec![value; part.len()]);
                }
            }
            // A copy between devices may go through the host. The host reads only valid elements.
            4 if self.model().is_some() => {
                let (target, to) = world.target(a, b, c);
                let copied = unless_refused(self.view().copy_to(&target), freed);
                let bytes =
                    self.memory.borrow().bytes[self.offset..][..length * size_of::<T>()].to_vec();
                if let Some(array) = copied {
                    let memory = world.memory(to, bytes);
                    more.push(Box::new(Slot { held: Held::Owned(array), memory, offset: 0 })
                        as Box<dyn Thing>);
                }
            }
            5 => {
                let copied = unless_refused(self.view().copy(), freed);
                let bytes =
                    self.memory.borrow().bytes[self.offset..][..length * size_of::<T>()].to_vec();
                if let Some(array) = copied {
                    let memory = world.memory(heap, bytes);
                    more.push(Box::new(Slot { held: Held::Owned(array), memory, offset: 0 })
                        as Box<dyn Thing>);
                }
            }
            6 => {
                let shape: Vec<usize> = match a % 4 {
                    0 => vec![length],
                    1 => vec![1, length],
                    2 if length.is_multiple_of(2) => vec![length / 2, 2],
                    _ => vec![length, 1, 1],
                };
                let other = shape.clone();
                assert!(self.view().into_shape(length + 1).is_err());
                return self.changed(
                    0,
                    |array| array.into_shape(shape),
                    |array| array.into_shape(other),
                    false,
                );
            }
            7 if self.view().ndim() > 0 => {
                let first = self.view().shape()[0];
                let (from, to) = (a as usize % (first + 1), b as usize % (first + 1));
                let rows = from.min(to)..from.max(to);
                let row = length.checked_div(first).unwrap_or(0) * size_of::<T>();
                let other = rows.clone();
                assert!(self.view().into_slice(..first + 1).is_err());
                return self.changed(
                    rows.start * row,
                    |array| array.into_slice(rows),
                    |array| array.into_slice(other),
                    false,
                );
            }
            8 if self.view().ndim() > 0 => {
                let first = self.view().shape()[0];
                assert!(self.view().into_index(first).is_err());
                if first > 0 {
                    let nth = a as usize % first;
                    let row = length / first * size_of::<T>();
                    return self.changed(
                        nth * row,
                        |array| array.into_index(nth),
                        |array| array.into_index(nth),
                        false,
                    );
                }
            }
            9 => {
                return match a % 7 {
                    0 => self.reinterpreted::<u8>(),
                    1 => self.reinterpreted::<u16>(),
                    2 => self.reinterpreted::<i32>(),
                    3 => self.reinterpreted::<u64>(),
                    4 => self.reinterpreted::<f32>(),
                    5 => self.reinterpreted::<f64>(),
                    _ => self.reinterpreted::<bool>(),
                };
            }
            10 => {
                // This fails if the stream is of another device without access to the array.
                let stream = &world.streams[a as usize % world.streams.len()].1;
                let _ = self.view().device_ptr(stream);
            }
            11 => {
                let Slot { held, memory, offset } = *self;
                let held = match held {
                    Held::Owned(array) => array.into_shared(),
                    Held::Shared(array) => array,
                };
                let other =
                    Slot { held: Held::Shared(held.clone()), memory: memory.clone(), offset };
                return vec![
                    Box::new(Slot { held: Held::Shared(held), memory, offset }),
                    Box::new(other),
                ];
            }
            12 => match &self.held {
                Held::Shared(array) => {
                    assert_eq!(array.free_early().unwrap(), !freed);
                    self.memory.borrow_mut().freed = true;
                }
                Held::Owned(_) => {
                    let Held::Owned(array) = self.held else { return Vec::new() };
                    let ended = match a % 3 {
                        0 => array.free(),
                        1 => array.release().map(drop),
                        _ => return Vec::new(),
                    };
                    assert_eq!(ended.is_err_and(|error| error.is_freed()), freed);
                    return Vec::new();
                }
            },
            13 => {
                let Held::Owned(array) = &mut self.held else { return vec![self] };
                if array.kind().is_host_accessible() {
                    let written = array.as_mut_slice().map(|mut elements| elements.fill(value));
                    match written {
                        Ok(()) => {
                            assert!(!freed);
                            let all = vec![value; length];
                            assert_eq!(array.as_slice().unwrap().to_vec(), all);
                            self.write(0, &all);
                        }
                        Err(error) => assert!(error.is_freed() || self.model().is_none()),
                    }
                }
            }
            14 => {
                let Slot { held, memory, offset } = *self;
                let Held::Owned(array) = held else {
                    return vec![Box::new(Slot { held, memory, offset })];
                };
                let shape = [a as usize % 20, b as usize % 20];
                let same = shape[0] * shape[1] == length;
                let mut bytes = memory.borrow().bytes[offset..][..length * size_of::<T>()].to_vec();
                return match array.resize(&shape[..], value) {
                    Ok(array) if same => {
                        vec![Box::new(Slot { held: Held::Owned(array), memory, offset })]
                    }
                    Ok(array) => {
                        assert!(!freed);
                        let count = shape[0] * shape[1];
                        bytes.truncate(count * size_of::<T>());
                        let missing = count - bytes.len() / size_of::<T>();
                        bytes.extend(bytes_of(&vec![value; missing]));
                        let memory = world.memory(heap, bytes);
                        vec![Box::new(Slot { held: Held::Owned(array), memory, offset: 0 })]
                    }
                    Err(error) => {
                        assert!(error.error().is_freed() == freed, "{error}");
                        vec![Box::new(Slot {
                            held: Held::Owned(error.into_array()),
                            memory,
                            offset,
                        })]
                    }
                };
            }
            15 => return Vec::new(),
            16 if self.model().is_some() => {
                let (target, to) = world.target(a, b, c);
                let adapted =
                    unless_refused(target.adapt(&(self.view(), elements::<T>(3, 1))), freed);
                let bytes =
                    self.memory.borrow().bytes[self.offset..][..length * size_of::<T>()].to_vec();
                if let Some((array, small)) = adapted {
                    let memory = world.memory(to, bytes);
                    more.push(Box::new(Slot { held: Held::Owned(array), memory, offset: 0 })
                        as Box<dyn Thing>);
                    let small = small.into_shape(IxDyn(&[3])).unwrap();
                    more.extend(slot(world, to, Some(small), &elements::<T>(3, 1)));
                }
            }
            17 if self.is_tame() => more.extend(T::converted(&self, world, step)),
            18 if self.is_tame() => {
                let host = self.model().unwrap_or_default();
                let made = T::combined(self.view(), self.view(), value, b);
                let made = unless_refused(made, freed);
                let combined: Vec<T> = host.iter().map(|one| one.combine(*one, value, b)).collect();
                more.extend(slot(world, heap, made, &combined));
                let added = T::add(self.view_mut(), value);
                if added.is_some_and(|added| unless_refused(added, freed).is_some()) {
                    let added: Vec<T> = host.iter().map(|one| one.plus(value)).collect();
                    self.write(0, &added);
                }
            }
            19 => {
                let (target, _) = world.target(a, b, c);
                let host: Vec<T> = elements(a as usize % 500 + 1, u64::from(c));
                let pieces: Vec<&[T]> = host.chunks(b as usize % 90 + 10).collect();
                let batches = target.batches(&pieces);
                match c % 6 {
                    // Batches are uploaded ahead by a thread, or on this thread during the next
                    // request.
                    0..=2 => std::thread::scope(|scope| {
                        let ahead = c as usize % 3 + 1;
                        see_batches(batches.prefetch_on(scope, ahead).unwrap(), &pieces, a);
                    }),
                    ahead => see_batches(batches.prefetch(ahead as usize - 3), &pieces, a),
                }
            }
            20 if self.model().is_some() => {
                if let Some(down) = unless_refused(Host.adapt(&(self.view(), self.view())), freed) {
                    let down: (ArrayD<T>, ArrayD<T>) = down;
                    let model = bytes_of(&self.model().unwrap_or_default());
                    assert_eq!(bytes_of(&down.0.into_raw_vec_and_offset().0), model);
                    assert_eq!(bytes_of(&down.1.into_raw_vec_and_offset().0), model);
                }
            }
            21 => {
                let flat = self.view().into_shape(IxDyn(&[length])).unwrap();
                let back = [SliceInfoElem::Slice { start: 0, end: None, step: -1 }];
                let copied = unless_refused(flat.copy_slice(&back[..]), freed);
                if let (Some(array), Some(mut host)) = (copied, self.model()) {
                    host.reverse();
                    more.extend(slot(world, heap, Some(array), &host));
                }
            }
            22 => drop(format!("{:?}", self.view())),
            23 => {
                let is_unified = self.view().kind() == MemoryKind::Unified;
                let told = [
                    self.view().prefetch(if a % 2 == 0 {
                        Location::Host
                    } else {
                        Location::Device
                    }),
                    self.view().advise(Advice::ReadMostly),
                    self.view().unadvise(Advice::ReadMostly),
                ];
                assert!(told.iter().all(|told| told.is_ok() == (is_unified && !freed)));
            }
            25 | 26 => {
                if let Some(slot) = (&mut *self as &mut dyn Any).downcast_mut::<Slot<i32>>() {
                    more.extend(arithmetic::calculate(slot, step, world));
                }
            }
            24 => {
                // Another thread ends, and its thread cache ends with it.
                let read = std::thread::scope(|scope| {
                    let view = self.view();
                    scope.spawn(move || view.copy().and_then(|copy| copy.to_vec())).join()
                });
                let read = read.unwrap();
                if let Some(model) = self.model()
                    && let Some(read) = unless_refused(read, freed)
                {
                    assert_eq!(bytes_of(&read), bytes_of(&model));
                }
            }
            _ => {
                let other = a as usize % world.things.len().max(1);
                if let Some(other) = world.things.get(other)
                    && let Some(other) = (&**other as &dyn Any).downcast_ref::<Slot<T>>()
                    && other.len() == length
                    && other.model().is_some()
                    && !Rc::ptr_eq(&other.memory, &self.memory)
                {
                    let (gone, source) = (freed || other.is_freed(), other.view());
                    if unless_refused(self.view_mut().copy_from(&source), gone).is_some() {
                        let bytes = other.memory.borrow().bytes[other.offset..]
                            [..length * size_of::<T>()]
                            .to_vec();
                        let start = self.offset;
                        self.memory.borrow_mut().bytes[start..start + bytes.len()]
                            .copy_from_slice(&bytes);
                    }
                }
            }
        }
        more.insert(0, self);
        more
    }
}

/// Compares batches with their sources. Some batches are only partly read, and some are not read.
fn see_batches<T: Model>(
    mut batches: impl Iterator<Item = Result<DeviceArray<T>, Error>>,
    pieces: &[&[T]],
    which: u32,
) {
    let seen = if which.is_multiple_of(4) { pieces.len() / 2 } else { pieces.len() };
    let mut last = None;
    for piece in &pieces[..seen] {
        let Some(batch) = unless_refused(batches.next().unwrap(), false) else { continue };
        assert_eq!(bytes_of(&batch.to_vec().unwrap()), bytes_of(piece));
        last = Some(batch);
    }
    if seen == pieces.len() {
        assert!(batches.next().is_none());
    }
    drop(batches);
    assert!(last.is_none_or(|last| last.is_freed()));
}

fn run(steps: &[Step], pools: [PoolKind; 3], schedule: Schedule, is_one_driver: bool) {
    let real = std::env::var("GPUHEAP_TEST_DEVICE").ok();
    let is_one_driver = is_one_driver && real.is_none();
    let devices = match (real, is_one_driver) {
        (Some(name), _) => [Device::open(&name).unwrap(), device(256 << 20, schedule)],
        (None, true) => two_devices(256 << 20, schedule),
        (None, false) => [device(256 << 20, schedule), device(256 << 20, schedule)],
    };
    let uncached = Heap::builder(&devices[0]).pool(pools[1]).without_environment().thread_cache(0);
    let heaps =
        [heap(&devices[0], pools[0]), uncached.build().unwrap(), heap(&devices[1], pools[2])];
    let streams = (0..5).map(|nth| nth / 3).map(|of| (of, devices[of].stream().unwrap()));
    let mut world = World {
        heaps: &heaps,
        streams: streams.collect(),
        devices: &devices,
        is_one_driver,
        things: Vec::new(),
        blocks: Vec::new(),
        meters: Vec::new(),
        scopes: Vec::new(),
    };
    world.run(&mut steps.iter().copied().collect(), &[]);
    world.things.iter().for_each(|thing| thing.check());
    devices.iter().for_each(|device| assert_no_findings(device, "running"));
    drop(world);
    for (nth, heap) in heaps.iter().enumerate() {
        assert_clean(&devices[nth / 2], heap, pools[nth].name());
    }
}

fn programs() -> impl Strategy<Value = (Vec<Step>, [prop::sample::Index; 3], u64)> {
    let steps = prop_oneof![
        prop::collection::vec(any::<Step>(), 1..200),
        prop::collection::vec(any::<Step>().prop_map(arithmetic_step), 1..60),
        prop::collection::vec(any::<Step>().prop_map(stream_step), 1..100),
    ];
    (steps, any::<[prop::sample::Index; 3]>(), any::<u64>())
}

/// Changes most steps into steps that make an `i32` array or calculate with one.
fn arithmetic_step((op, a, b, c): Step) -> Step {
    match op % 8 {
        0 | 1 => (0, a / 7 * 7 + 2, b % 30, c),
        2 => (op, a, b, c),
        _ => (12 * 16 + 9, a, b, c | 1),
    }
}

/// Changes most steps into steps that make, copy or free a byte array, or use blocks and streams.
fn stream_step((op, a, b, c): Step) -> Step {
    match op % 8 {
        0 | 1 => (0, a / 7 * 7, b, c),
        2..=4 => (5, a, b, c),
        5 => (op / 16 * 16 + 12, a, b, c),
        _ => (op, a, b, c),
    }
}

/// Minimum number of programs.
const PROGRAMS: u64 = 96;

/// Runs for `GPUHEAP_HOSTILE_SECONDS`, or 5 seconds.
#[test]
fn random_programs_match_model() {
    let seconds = std::env::var("GPUHEAP_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(5));
    let mut count = 0;
    while count < PROGRAMS || Instant::now() < end {
        let config = Config { cases: 16, failure_persistence: None, ..Config::default() };
        let failed = TestRunner::new(config).run(&programs(), |(steps, pools, seed)| {
            let pools = pools.map(|pool| *pool.get(&PoolKind::ALL));
            let schedule = match seed % 4 {
                0 => Schedule::Immediate,
                1 => Schedule::OnDemand,
                2 => Schedule::Lag(Duration::from_micros(seed % 50)),
                _ => Schedule::Seeded(seed),
            };
            run(&steps, pools, schedule, seed & 8 == 0);
            Ok(())
        });
        if let Err(error) = failed {
            panic!("{error}");
        }
        count += 16;
    }
    println!("{count} programs");
}
