//! Random programs over the public interface, beside a model that has the bytes of each piece of
//! memory on the host.

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
    Location, MemoryKind, PoolKind, Scope, SharedArray, Stream, Target,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::{assert_clean, assert_no_findings, device, heap};

/// A step of a program: which one, and numbers that it makes of what it likes.
type Step = (u8, u32, u32, u32);

/// A piece of memory, with the heap that it is of.
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

/// A handle, and where it is in what memory.
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

/// An element with a model.
trait Model: Plain + Item<Group = Elements> + Zeroable + PartialEq + Debug {
    fn made(seed: u64) -> Self;
    /// Returns `true` if arithmetic and conversions of it have one result.
    fn is_tame(self) -> bool {
        true
    }
    /// The sum with another array of its shape, and what it is to be; `None` of no numbers.
    fn sum(
        left: DeviceView<'_, Self, IxDyn>,
        right: DeviceView<'_, Self, IxDyn>,
    ) -> Option<Made<Self>>;
    /// Adds a number in place.
    fn add(left: DeviceViewMut<'_, Self, IxDyn>, right: Self) -> Option<Result<(), Error>>;
    fn plus(self, other: Self) -> Self;
    /// Converts an array by `cu` or `narrow`.
    fn converted(from: &Slot<Self>, world: &mut World<'_>, step: Step) -> Vec<Box<dyn Thing>>;
}

type Made<T> = Result<DeviceArray<T, IxDyn>, Error>;

macro_rules! converts {
    ($of:ident) => {
        fn converted(
            from: &Slot<$of>,
            world: &mut World<'_>,
            (_, a, b, c): Step,
        ) -> Vec<Box<dyn Thing>> {
            let (target, to) = world.target(a, b, c);
            let (freed, host) = (from.is_freed(), from.model().unwrap_or_default());
            if b % 2 == 0 {
                let array = done(target.cu(&from.view()), freed);
                let host: Vec<<$of as Plain>::Cu> = host.into_iter().map(Plain::cu).collect();
                slot(world, to, array, &host)
            } else {
                let array = done(target.narrow(&from.view()), freed);
                let host: Vec<<$of as Plain>::Narrow> =
                    host.into_iter().map(Plain::narrow).collect();
                slot(world, to, array, &host)
            }
        }
    };
}

macro_rules! numbers {
    ($($of:ident: $plus:expr, $tame:expr;)*) => {
        $(
            impl Model for $of {
                fn made(seed: u64) -> $of {
                    (seed % 200) as $of
                }

                fn is_tame(self) -> bool {
                    let tame: fn($of) -> bool = $tame;
                    tame(self)
                }

                fn sum(left: DeviceView<'_, $of, IxDyn>, right: DeviceView<'_, $of, IxDyn>) -> Option<Made<$of>> {
                    Some(left.try_add(right))
                }

                fn add(mut left: DeviceViewMut<'_, $of, IxDyn>, right: $of) -> Option<Result<(), Error>> {
                    Some(left.add_assign(right))
                }

                fn plus(self, other: $of) -> $of {
                    let plus: fn($of, $of) -> $of = $plus;
                    plus(self, other)
                }

                converts!($of);
            }
        )*
    };
}

numbers! {
    u8: u8::wrapping_add, |_| true;
    u16: u16::wrapping_add, |_| true;
    i32: i32::wrapping_add, |_| true;
    u64: u64::wrapping_add, |_| true;
    f32: |a, b| a + b, |of| of.is_finite() && of.abs() < 1e30;
    f64: |a, b| a + b, |of| of.is_finite() && of.abs() < 1e30;
}

impl Model for bool {
    fn made(seed: u64) -> bool {
        seed % 3 == 1
    }

    fn sum(_: DeviceView<'_, bool, IxDyn>, _: DeviceView<'_, bool, IxDyn>) -> Option<Made<bool>> {
        None
    }

    fn add(_: DeviceViewMut<'_, bool, IxDyn>, _: bool) -> Option<Result<(), Error>> {
        None
    }

    fn plus(self, _: bool) -> bool {
        self
    }

    converts!(bool);
}

fn elements<T: Model>(count: usize, seed: u64) -> Vec<T> {
    (0..count as u64).map(|nth| T::made(seed.wrapping_add(nth * 7))).collect()
}

fn bytes_of<T: Model>(elements: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(elements).to_vec()
}

/// Returns the value of a call: none if the memory was freed, which is then to be said, or ran out.
fn done<R>(result: Result<R, Error>, freed: bool) -> Option<R> {
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

    /// Its elements, if their bytes are any.
    fn model(&self) -> Option<Vec<T>> {
        let memory = self.memory.borrow();
        let bytes = &memory.bytes[self.offset..][..self.len() * size_of::<T>()];
        let read = |bytes| bytemuck::checked::try_pod_read_unaligned(bytes).ok();
        bytes.chunks_exact(size_of::<T>()).map(read).collect()
    }

    fn is_tame(&self) -> bool {
        self.model().is_some_and(|all| all.into_iter().all(T::is_tame))
    }

    /// Writes elements from the `from`th on into the model.
    fn write(&self, from: usize, elements: &[T]) {
        let start = self.offset + from * size_of::<T>();
        let bytes = bytes_of(elements);
        self.memory.borrow_mut().bytes[start..start + bytes.len()].copy_from_slice(&bytes);
    }

    /// Replaces the handle by what `change` makes of it; gone if that fails as it must.
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
        // Where registered memory begins is not for the model to know.
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
        let read = view.to_vec();
        match self.model() {
            _ if self.is_freed() => assert!(read.unwrap_err().is_freed()),
            None => assert!(!read.unwrap_err().is_freed()),
            // By bytes: a NaN is not equal to itself.
            Some(model) => assert_eq!(bytes_of(&read.unwrap()), bytes_of(&model)),
        }
    }

    fn act(mut self: Box<Self>, step: Step, world: &mut World<'_>) -> Vec<Box<dyn Thing>> {
        let (op, a, b, c) = step;
        let (length, freed, heap) = (self.len(), self.is_freed(), self.memory.borrow().heap);
        let (from, to) = (a as usize % (length + 1), b as usize % (length + 1));
        let part = from.min(to)..from.max(to);
        let value = T::made(u64::from(c));
        let mut more = Vec::new();
        match op % 26 {
            0 => self.check(),
            1 => {
                if done(self.view_mut().fill(value), freed).is_some() {
                    self.write(0, &vec![value; length]);
                }
            }
            2 => {
                let host: Vec<T> = elements(length, u64::from(c));
                if done(self.view_mut().write_from(&host), freed).is_some() {
                    self.write(0, &host);
                }
                assert!(self.view_mut().write_from(&elements::<T>(length + 1, 0)).is_err());
            }
            3 => {
                let flat = self.view_mut().into_shape(length).unwrap();
                let filled = flat.into_slice(part.clone()).unwrap().fill(value);
                if done(filled, freed).is_some() {
                    self.write(part.start, &vec![value; part.len()]);
                }
            }
            // The host reads it on the way to another device.
            4 if self.model().is_some() => {
                let (target, to) = world.target(a, b, c);
                let copied = done(self.view().copy_to(&target), freed);
                let bytes =
                    self.memory.borrow().bytes[self.offset..][..length * size_of::<T>()].to_vec();
                if let Some(array) = copied {
                    let memory = world.memory(to, bytes);
                    more.push(Box::new(Slot { held: Held::Owned(array), memory, offset: 0 })
                        as Box<dyn Thing>);
                }
            }
            5 => {
                let copied = done(self.view().copy(), freed);
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
                // A stream of another device may not reach it.
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
                let adapted = done(target.adapt(&(self.view(), elements::<T>(3, 1))), freed);
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
                if let Some(added) = T::sum(self.view(), self.view()) {
                    let array = done(added, freed);
                    let doubled: Vec<T> = host.iter().map(|one| one.plus(*one)).collect();
                    more.extend(slot(world, heap, array, &doubled));
                }
                let added = T::add(self.view_mut(), value);
                if added.is_some_and(|added| done(added, freed).is_some()) {
                    let added: Vec<T> = host.iter().map(|one| one.plus(value)).collect();
                    self.write(0, &added);
                }
            }
            19 => {
                let (target, _) = world.target(a, b, c);
                let host: Vec<T> = elements(a as usize % 500 + 1, u64::from(c));
                let pieces: Vec<&[T]> = host.chunks(b as usize % 90 + 10).collect();
                let mut batches = target.batches(&pieces).prefetch(c as usize % 3);
                let mut last = None;
                for piece in &pieces {
                    let Some(batch) = done(batches.next().unwrap(), false) else { continue };
                    assert_eq!(bytes_of(&batch.to_vec().unwrap()), bytes_of(piece));
                    last = Some(batch);
                }
                assert!(batches.next().is_none());
                assert!(last.is_none_or(|last| last.is_freed()));
            }
            20 if self.model().is_some() => {
                if let Some(down) = done(Host.adapt(&(self.view(), self.view())), freed) {
                    let down: (ArrayD<T>, ArrayD<T>) = down;
                    let model = bytes_of(&self.model().unwrap_or_default());
                    assert_eq!(bytes_of(&down.0.into_raw_vec_and_offset().0), model);
                    assert_eq!(bytes_of(&down.1.into_raw_vec_and_offset().0), model);
                }
            }
            21 => {
                let flat = self.view().into_shape(IxDyn(&[length])).unwrap();
                let back = [SliceInfoElem::Slice { start: 0, end: None, step: -1 }];
                let copied = done(flat.copy_slice(&back[..]), freed);
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
            24 => {
                // Another thread ends, and what it kept for itself with it.
                let read = std::thread::scope(|scope| {
                    let view = self.view();
                    scope.spawn(move || view.copy().and_then(|copy| copy.to_vec())).join()
                });
                let read = read.unwrap();
                if let Some(model) = self.model()
                    && let Some(read) = done(read, freed)
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
                    if done(self.view_mut().copy_from(&source), gone).is_some() {
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

/// Heaps, streams, and what a program holds.
struct World<'a> {
    heaps: &'a [Heap],
    /// Each with the device that it is of.
    streams: Vec<(usize, Stream)>,
    devices: &'a [Device],
    things: Vec<Box<dyn Thing>>,
    blocks: Vec<Block>,
    /// The thread's scopes, each with its heap and the memory that its end frees.
    scopes: Vec<(usize, Vec<Shared>)>,
}

impl World<'_> {
    /// The device that a heap is of: the last heap alone is of the second one.
    fn device_of(&self, heap: usize) -> usize {
        usize::from(heap + 1 == self.heaps.len())
    }

    fn target(&self, heap: u32, stream: u32, kind: u32) -> (Target, usize) {
        let heap = heap as usize % self.heaps.len();
        let own: Vec<&Stream> = self
            .streams
            .iter()
            .filter(|(device, _)| *device == self.device_of(heap))
            .map(|(_, stream)| stream)
            .collect();
        let stream = own[stream as usize % own.len()];
        let kinds = [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Unified];
        (self.heaps[heap].on(stream).kind(kinds[kind as usize % 3]), heap)
    }

    /// New memory of a heap, of its innermost scope.
    fn memory(&mut self, heap: usize, bytes: Vec<u8>) -> Shared {
        let memory = Rc::new(RefCell::new(Memory { bytes, heap, freed: false }));
        if let Some((_, members)) = self.scopes.iter_mut().rev().find(|(of, _)| *of == heap) {
            members.push(memory.clone());
        }
        memory
    }

    fn make<T: Model>(&mut self, (_, a, b, c): Step) {
        let (target, heap) = self.target(a, b, c);
        let count = match a % 16 {
            0 => 0,
            1 => 100_000 + b as usize % 1_000_000,
            _ => b as usize % 400,
        };
        let shape = match c % 3 {
            0 => vec![count],
            1 if count.is_multiple_of(3) => vec![count / 3, 3],
            _ => vec![1, count],
        };
        let host: Vec<T> = elements(count, u64::from(c));
        let value = T::made(u64::from(c));
        let (array, host) = match (a >> 8) % 6 {
            0 => (target.filled(&shape[..], value), vec![value; count]),
            1 => (target.zeroed(&shape[..]), vec![T::zeroed(); count]),
            2 => (target.uninit(&shape[..]).and_then(|array| array.write_from(&host)), host),
            3 => {
                let registered = target.register(host.clone()).map_err(Error::from);
                (registered.and_then(|array| array.into_shape(&shape[..])), host)
            }
            4 => {
                let target = target.zero_on_free(true).zero_on_alloc(true);
                (target.array(&host[..]).and_then(|array| array.into_shape(&shape[..])), host)
            }
            _ => {
                let host = ArrayD::from_shape_vec(IxDyn(&shape), host).unwrap();
                (target.array(&host), host.into_raw_vec_and_offset().0)
            }
        };
        let made = slot(self, heap, done(array, false), &host);
        self.things.extend(made);
    }

    /// Several small arrays in one block.
    fn adapt(&mut self, (_, a, b, c): Step) {
        let (target, heap) = self.target(a, b, c);
        let lists: Vec<Vec<u16>> =
            (0..a as usize % 9).map(|nth| elements(b as usize % 99 + nth, u64::from(c))).collect();
        let others: Vec<Vec<bool>> = (0..3).map(|nth| elements(nth * 40, 1)).collect();
        let adapted = done(target.adapt(&(lists.clone(), others.clone())), false);
        let Some((arrays, masks)) = adapted else { return };
        for (array, host) in arrays.into_iter().zip(lists) {
            let made = slot(self, heap, array.into_shape(IxDyn(&[host.len()])).ok(), &host);
            self.things.extend(made);
        }
        for (array, host) in masks.into_iter().zip(others) {
            let made = slot(self, heap, array.into_shape(IxDyn(&[host.len()])).ok(), &host);
            self.things.extend(made);
        }
    }

    /// Does what concerns no array.
    fn manage(&mut self, (_, a, b, c): Step) {
        let (heaps, devices) = (self.heaps, self.devices);
        let heap = &heaps[b as usize % heaps.len()];
        let (target, _) = self.target(a, b, c);
        match a % 14 {
            0 => drop(heap.reclaim(u64::from(c)).unwrap()),
            1 => drop(heap.reclaim_all().unwrap()),
            2 => drop(heap.flush().unwrap()),
            3 => drop(heap.would_fit(u64::from(c) << 4).unwrap()),
            4 => drop(heap.memory_status().unwrap().to_string()),
            5 => {
                // Settings that do not go together are refused.
                let hard = 40_u64 << 20 << (c % 3);
                let _ = heap.set_limits(Limits { hard: Some(hard), ..heap.limits() });
            }
            6 => target.stream().synchronize().unwrap(),
            7 => devices[c as usize % devices.len()].synchronize().unwrap(),
            8 => {
                let event = target.stream().record().unwrap();
                let same = self.streams.iter().filter(|(device, _)| *device == 0);
                if self.device_of(b as usize % self.heaps.len()) == 0 {
                    same.for_each(|(_, stream)| drop(stream.wait(&event)));
                }
                drop(event.is_done());
            }
            9 => {
                // A stream ends before what was used on it; another takes its place.
                let at = c as usize % self.streams.len();
                let of = self.streams[at].0;
                self.streams[at] = (of, devices[of].stream().unwrap());
            }
            10 => {
                let block = heap.allocate(u64::from(c) % (1 << 22), &{
                    let of = self.device_of(b as usize % self.heaps.len());
                    self.streams.iter().find(|(device, _)| *device == of).unwrap().1.clone()
                });
                self.blocks.extend(done(block, false));
            }
            11 if !self.blocks.is_empty() => {
                let at = c as usize % self.blocks.len();
                self.blocks.swap_remove(at).free().unwrap();
            }
            12 => {
                let retried = heap.retry(|| target.filled(c as usize % 1_000_000, 1_u8));
                drop(done(retried, false));
            }
            _ => {
                let usage = heap.usage().unwrap();
                assert!(usage.live <= usage.live_peak);
            }
        }
    }

    fn run(&mut self, steps: &mut VecDeque<Step>, scopes: &[&Scope]) {
        while let Some(step) = steps.pop_front() {
            let (op, a, b, _) = step;
            match op % 16 {
                0..=3 => match a % 7 {
                    0 => self.make::<u8>(step),
                    1 => self.make::<u16>(step),
                    2 => self.make::<i32>(step),
                    3 => self.make::<u64>(step),
                    4 => self.make::<f32>(step),
                    5 => self.make::<f64>(step),
                    _ => self.make::<bool>(step),
                },
                4 => self.adapt(step),
                5 => self.manage(step),
                6 if scopes.len() < 4 => {
                    let heap = a as usize % self.heaps.len();
                    let count = steps.len().min(b as usize % 30);
                    let mut body: VecDeque<Step> = steps.drain(..count).collect();
                    self.scopes.push((heap, Vec::new()));
                    let (_, report) = self.heaps[heap].clone().thread_scope(|scope| {
                        let scopes: Vec<&Scope> = scopes.iter().copied().chain([scope]).collect();
                        self.run(&mut body, &scopes);
                    });
                    assert!(report.failed.is_empty(), "{report}");
                    let (_, members) = self.scopes.pop().unwrap();
                    members.iter().for_each(|memory| memory.borrow_mut().freed = true);
                }
                7 if !self.things.is_empty() && !scopes.is_empty() => {
                    let thing = &self.things[a as usize % self.things.len()];
                    let at = b as usize % scopes.len();
                    thing.keep(scopes[at]);
                    let memory = thing.memory().clone();
                    let (heap, members) = &mut self.scopes[at];
                    let heap = *heap;
                    let count = members.len();
                    members.retain(|member| !Rc::ptr_eq(member, &memory));
                    if members.len() < count {
                        // It is the next outer one's of that heap.
                        let outer = self.scopes[..at].iter_mut().rev().find(|(of, _)| *of == heap);
                        if let Some((_, members)) = outer {
                            members.push(memory);
                        }
                    }
                }
                _ if !self.things.is_empty() => {
                    let thing = self.things.swap_remove(a as usize % self.things.len());
                    let (op, a, b, c) = step;
                    let step = (op / 16 + (c % 2) as u8 * 13, a.rotate_left(7), b, c);
                    let things = thing.act(step, self);
                    self.things.extend(things);
                }
                _ => {}
            }
        }
    }
}

fn run(steps: &[Step], pools: [PoolKind; 3], schedule: Schedule) {
    let devices = [device(256 << 20, schedule), device(256 << 20, schedule)];
    let heaps =
        [heap(&devices[0], pools[0]), heap(&devices[0], pools[1]), heap(&devices[1], pools[2])];
    let streams = (0..5).map(|nth| nth / 3).map(|of| (of, devices[of].stream().unwrap()));
    let mut world = World {
        heaps: &heaps,
        streams: streams.collect(),
        devices: &devices,
        things: Vec::new(),
        blocks: Vec::new(),
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
    (prop::collection::vec(any::<Step>(), 1..200), any::<[prop::sample::Index; 3]>(), any::<u64>())
}

/// For as long as `GPUHEAP_HOSTILE_SECONDS` says; 5 without.
#[test]
fn random_programs_do_what_the_model_does() {
    let seconds = std::env::var("GPUHEAP_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(5));
    let mut count = 0;
    while count == 0 || Instant::now() < end {
        let config = Config { cases: 16, failure_persistence: None, ..Config::default() };
        let failed = TestRunner::new(config).run(&programs(), |(steps, pools, seed)| {
            let pools = pools.map(|pool| *pool.get(&PoolKind::ALL));
            let schedule = match seed % 4 {
                0 => Schedule::Immediate,
                1 => Schedule::OnDemand,
                2 => Schedule::Lag(Duration::from_micros(seed % 50)),
                _ => Schedule::Seeded(seed),
            };
            run(&steps, pools, schedule);
            Ok(())
        });
        if let Err(error) = failed {
            panic!("{error}");
        }
        count += 16;
    }
    println!("{count} programs");
}
