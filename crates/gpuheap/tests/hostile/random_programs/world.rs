//! Keeps a program's heaps, streams and arrays, and runs the program's steps.

use super::*;

/// Heaps and streams of a program, and the values that it holds.
pub(super) struct World<'a> {
    pub(super) heaps: &'a [Heap],
    /// Streams, each with its device.
    pub(super) streams: Vec<(usize, Stream)>,
    pub(super) devices: &'a [Device],
    /// `true` if both devices are of one driver.
    pub(super) is_one_driver: bool,
    pub(super) things: Vec<Box<dyn Thing>>,
    /// Blocks, each with its device.
    pub(super) blocks: Vec<(usize, Block)>,
    pub(super) meters: Vec<Meter>,
    /// Scopes of the thread, each with its heap and the memory that its end frees.
    pub(super) scopes: Vec<(usize, Vec<Shared>)>,
}

impl World<'_> {
    /// Returns the device of a heap: only the last heap is on the second device.
    pub(super) fn device_of(&self, heap: usize) -> usize {
        usize::from(heap + 1 == self.heaps.len())
    }

    pub(super) fn target(&self, heap: u32, stream: u32, kind: u32) -> (Target, usize) {
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

    /// Records new memory of a heap, in the heap's innermost scope.
    pub(super) fn memory(&mut self, heap: usize, bytes: Vec<u8>) -> Shared {
        let memory = Rc::new(RefCell::new(Memory { bytes, heap, freed: false }));
        if let Some((_, members)) = self.scopes.iter_mut().rev().find(|(of, _)| *of == heap) {
            members.push(memory.clone());
        }
        memory
    }

    pub(super) fn make<T: Model>(&mut self, (_, a, b, c): Step) {
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
        let value = T::from_seed(u64::from(c));
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
        let made = slot(self, heap, unless_refused(array, false), &host);
        self.things.extend(made);
    }

    /// Uploads several small arrays with one call of `Target::adapt`. The arrays share one block.
    pub(super) fn adapt(&mut self, (_, a, b, c): Step) {
        let (target, heap) = self.target(a, b, c);
        let lists: Vec<Vec<u16>> =
            (0..a as usize % 9).map(|nth| elements(b as usize % 99 + nth, u64::from(c))).collect();
        let others: Vec<Vec<bool>> = (0..3).map(|nth| elements(nth * 40, 1)).collect();
        let adapted = unless_refused(target.adapt(&(lists.clone(), others.clone())), false);
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

    /// Runs a step that involves no array.
    pub(super) fn manage(&mut self, (_, a, b, c): Step) {
        let (heaps, devices) = (self.heaps, self.devices);
        let heap = &heaps[b as usize % heaps.len()];
        let (target, of) = self.target(a, b, c);
        match a % 18 {
            0 => drop(heap.reclaim(u64::from(c)).unwrap()),
            1 => drop(heap.reclaim_all().unwrap()),
            2 => drop(heap.flush().unwrap()),
            3 => drop(heap.would_fit(u64::from(c) << 4).unwrap()),
            4 => drop(heap.memory_status().unwrap().to_string()),
            5 => {
                // Settings that contradict one another are refused.
                let hard = 40_u64 << 20 << (c % 3);
                let _ = heap.set_limits(Limits { hard: Some(hard), ..heap.limits() });
            }
            6 => target.stream().synchronize().unwrap(),
            7 => devices[c as usize % devices.len()].synchronize().unwrap(),
            8 => {
                // Streams of another device can wait for the event if one driver has both devices.
                let event = target.stream().record().unwrap();
                let of = self.device_of(of);
                for (nth, (device, stream)) in self.streams.iter().enumerate() {
                    let waited = stream.wait(&event);
                    assert_eq!(waited.is_ok(), *device == of || self.is_one_driver, "{waited:?}");
                    if waited.is_ok() && nth == c as usize % 8 {
                        stream.synchronize().unwrap();
                        assert!(event.is_done().unwrap(), "the stream did not wait for the event");
                    }
                }
                drop(event.is_done());
            }
            9 => {
                // A stream ends before arrays that were used on it, and another stream takes its
                // place.
                let at = c as usize % self.streams.len();
                let of = self.streams[at].0;
                self.streams[at] = (of, devices[of].stream().unwrap());
            }
            10 => {
                let block = heaps[of].allocate(u64::from(c) % (1 << 22), target.stream());
                let device = self.device_of(of);
                self.blocks.extend(unless_refused(block, false).map(|block| (device, block)));
            }
            11 if !self.blocks.is_empty() => {
                let at = c as usize % self.blocks.len();
                self.blocks.swap_remove(at).1.free().unwrap();
            }
            13 if !self.blocks.is_empty() => {
                // Frees the block on a stream that is not ordered after the block's work. The free
                // runs on this thread or on another thread.
                let (device, block) = self.blocks.swap_remove(c as usize % self.blocks.len());
                let stream = target.stream().clone();
                let is_near = device == self.device_of(of);
                let free = move || block.free_on(&stream);
                let freed =
                    if c % 2 == 0 { free() } else { std::thread::spawn(free).join().unwrap() };
                assert_eq!(freed.is_ok(), is_near, "{freed:?}");
            }
            // Retiring affects only foreign streams, and safe code has none, so nothing may change.
            14 if c % 2 == 0 => heaps[of].retire(target.stream()).unwrap(),
            14 => heaps[of].retire_all().unwrap(),
            15 => self.meters.extend(heap.meter().ok()),
            16 if !self.meters.is_empty() => {
                drop(self.meters.swap_remove(c as usize % self.meters.len()));
            }
            17 => drop(target.stream().is_done().unwrap()),
            12 => {
                let retried = heap.retry(|| target.filled(c as usize % 1_000_000, 1_u8));
                drop(unless_refused(retried, false));
            }
            _ => {
                let usage = heap.usage().unwrap();
                assert!(usage.live <= usage.live_peak);
            }
        }
    }

    /// Runs steps while arrays of a scope's own target are live. The scope's end frees these arrays
    /// and their copies, but not the array that this function keeps with `Scope::keep`.
    pub(super) fn in_scope(
        &mut self,
        (_, a, b, c): Step,
        body: &mut VecDeque<Step>,
        scopes: &[&Scope],
    ) {
        let (target, heap) = self.target(a, b, c);
        let (stream, kind) = (target.stream().clone(), target.memory_kind());
        let host: Vec<u16> = elements(c as usize % 3000 + 1, u64::from(c));
        let meter = self.heaps[heap].meter().unwrap();
        let (arrays, report) = self.heaps[heap].clone().scope(|scope| {
            let target = scope.on(&stream).kind(kind);
            let make = || {
                let array = unless_refused(target.array(&host), false)?;
                Some(array.into_shape(IxDyn(&[host.len()])).unwrap())
            };
            let [kept, left] = [make(), make()];
            if let Some(array) = &kept {
                scope.keep(array);
            }
            let copy = left.as_ref().and_then(|array| unless_refused(array.copy(), false));
            let arrays: Vec<_> = [left, copy, kept].into_iter().collect();
            let live: u64 = arrays.iter().flatten().map(|array| array.bytes()).sum();
            assert!(kind != MemoryKind::Device || meter.read().unwrap().peak() >= live);
            self.run(body, scopes);
            for array in arrays.iter().flatten() {
                assert_eq!(array.to_vec().unwrap(), host);
            }
            arrays
        });
        assert!(report.failed.is_empty(), "{report}");
        let is_kept = arrays.last().is_some_and(Option::is_some);
        let freed = arrays.iter().flatten().count() - usize::from(is_kept);
        assert_eq!(
            (report.freed, report.kept.len()),
            (freed as u64, usize::from(is_kept)),
            "{report}"
        );
        for (nth, array) in arrays.into_iter().enumerate() {
            let Some(array) = array else { continue };
            let memory = self.memory(heap, bytes_of(&host));
            memory.borrow_mut().freed = nth < 2;
            self.things.push(Box::new(Slot { held: Held::Owned(array), memory, offset: 0 }));
        }
    }

    pub(super) fn run(&mut self, steps: &mut VecDeque<Step>, scopes: &[&Scope]) {
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
                8 if scopes.len() < 4 => {
                    let count = steps.len().min(b as usize % 20);
                    let mut body: VecDeque<Step> = steps.drain(..count).collect();
                    self.in_scope(step, &mut body, scopes);
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
                        // Kept memory belongs to the next outer scope of its heap.
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
