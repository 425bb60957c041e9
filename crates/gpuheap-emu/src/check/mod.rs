//! Checks of every call, and the state that the emulator keeps for them.
//!
//! Each use is checked during its call, in call order, regardless of when the schedule runs the
//! work. A finding of unordered accesses means that nothing orders them, not that they ran at the
//! same time.

mod blocks;
mod kernel;
mod misuse;

use gpuheap_driver::CUevent;

use crate::emulator::Call;
use crate::finding::FindingKind;
use crate::state::access::{AccessKind, Is, Side};
use crate::state::checker::{Checker, Quarantined};
use crate::state::clock::{Clock, HOST, Lane};
use crate::state::ranges::{Conflict, Ranges, Use};
use crate::state::space::{Allocation, Kind};
use crate::state::stream::StreamKind;
use crate::state::vmm::Mapping;

/// Order between streams and the host.
impl Call<'_> {
    /// Begins new work of a stream. The work is ordered after everything that happened before the
    /// host's call. By the rule of the default stream, it is also ordered after work of other
    /// streams.
    pub(crate) fn begin(&mut self, stream: u32) {
        let Some(before) = self.clock_of_new_work(stream) else { return };
        if let Some((lane, clock)) = self.lane_and_clock(stream) {
            *clock = before;
            clock.step(*lane);
        }
    }

    /// Returns the clock of everything that would happen before new work of a stream; `None` if the
    /// stream records a graph.
    pub(crate) fn clock_of_new_work(&mut self, stream: u32) -> Option<Clock> {
        if self.state.captures.is_recording(stream) {
            return None;
        }
        let mut before = self.lane_and_clock(stream)?.1.clone();
        let state = &*self.state;
        let (checker, found) = (state.checker.as_ref()?, state.streams.at(stream)?);
        before.join(&checker.host);
        if found.is_blocking() {
            if found.kind == StreamKind::Legacy
                && let Some(gone) = checker.gone.get(&found.context)
            {
                before.join(gone);
            }
            for (&index, (_, clock)) in &checker.streams {
                if state.streams.at(index).is_some_and(|other| found.is_ordered_with(other)) {
                    before.join(clock);
                }
            }
        }
        Some(before)
    }

    /// Begins a host's wait for a stream, a query of a stream, or a stream's wait for an event. On
    /// the legacy default stream, these calls wait for other streams, like new work. On another
    /// stream, they do not wait for the legacy default stream (measured on an H200, driver 580).
    pub(crate) fn begin_wait(&mut self, stream: u32) {
        if self.state.streams.at(stream).is_some_and(|found| found.kind == StreamKind::Legacy) {
            self.begin(stream);
        } else {
            self.lane_and_clock(stream);
        }
    }

    /// Returns the clock of an event that is recorded on a stream. Like new work, the event is
    /// ordered after the legacy default stream. But a host that waits for the stream does not wait
    /// for the legacy default stream (measured on an H200, driver 580). So the stream's own clock
    /// stays unchanged.
    pub(crate) fn clock_of_event(&mut self, stream: u32) -> Option<Box<Clock>> {
        self.begin_wait(stream);
        self.clock_of_new_work(stream).map(Box::new)
    }

    fn lane_and_clock(&mut self, stream: u32) -> Option<&mut (Lane, Clock)> {
        let state = &mut *self.state;
        let found = state.streams.at(stream)?;
        Some(state.checker.as_mut()?.stream(stream, found.id, found.kind))
    }

    /// Returns the clock of everything that happened before the stream's next work.
    pub(crate) fn clock_of(&self, stream: u32) -> Option<Box<Clock>> {
        let checker = self.state.checker.as_ref()?;
        checker.streams.get(&stream).map(|(_, clock)| Box::new(clock.clone()))
    }

    pub(crate) fn stream_waits_for(&mut self, stream: u32, event: CUevent) {
        let state = &mut *self.state;
        let Some(checker) = &mut state.checker else { return };
        let record = state.events.get(event.0).and_then(|event| event.recorded.as_ref());
        if let Some((_, clock)) = checker.streams.get_mut(&stream)
            && let Some(known) = record.and_then(|record| record.clock.as_ref())
        {
            clock.join(known);
        }
    }

    pub(crate) fn host_waits_for_event(&mut self, event: CUevent) {
        let state = &mut *self.state;
        let Some(checker) = &mut state.checker else { return };
        let record = state.events.get(event.0).and_then(|event| event.recorded.as_ref());
        if let Some(known) = record.and_then(|record| record.clock.as_ref()) {
            checker.host.join(known);
        }
    }

    pub(crate) fn host_waits_for_stream(&mut self, stream: u32) {
        let Some(checker) = &mut self.state.checker else { return };
        if let Some((_, clock)) = checker.streams.get(&stream) {
            checker.host.join(clock);
        }
    }

    pub(crate) fn host_waits_for_context(&mut self, context: u32) {
        let state = &mut *self.state;
        let Some(checker) = &mut state.checker else { return };
        for (&index, (_, clock)) in &checker.streams {
            if state.streams.at(index).is_some_and(|stream| stream.context == context) {
                checker.host.join(clock);
            }
        }
        if let Some(gone) = checker.gone.get(&context) {
            checker.host.join(gone);
        }
    }

    /// Orders the host after the work that `clock` covers, once a callback runs after that work.
    pub(crate) fn order_host_after(&mut self, clock: Option<&Clock>) {
        if let (Some(checker), Some(clock)) = (&mut self.state.checker, clock) {
            checker.host.join(clock);
        }
    }

    /// Forgets a destroyed stream, because a new stream may reuse its index.
    pub(crate) fn stream_gone(&mut self, stream: u32) {
        let context = self.context_of(stream);
        let Some(checker) = &mut self.state.checker else { return };
        if let Some((_, clock)) = checker.streams.remove(&stream) {
            checker.gone.entry(context).or_default().join(&clock);
        }
    }
}

/// Uses of ranges.
impl Call<'_> {
    /// Records that work of a stream uses a range of memory that the device sees.
    pub(crate) fn note_access(
        &mut self,
        stream: u32,
        address: u64,
        bytes: u64,
        access: AccessKind,
    ) {
        if self.state.checker.is_none() || self.state.captures.is_recording(stream) {
            return;
        }
        for (offset, physical, length) in self.physical_ranges(address, bytes) {
            self.note_physical(stream, address + offset, physical, length, access);
        }
    }

    /// Records that work of a stream copies a rectangle.
    pub(crate) fn note_copy(
        &mut self,
        stream: u32,
        target: Side,
        source: Side,
        width: u64,
        height: u64,
    ) {
        if self.state.checker.is_none() || self.state.captures.is_recording(stream) {
            return;
        }
        let seen = |side: Side| self.state.space.find(side.address).is_some();
        let (reads, writes) = (seen(source), seen(target));
        for row in 0..height {
            let (from, to) =
                (source.address + row * source.pitch, target.address + row * target.pitch);
            let undefined = if reads { self.undefined_in(from, width) } else { Vec::new() };
            if reads {
                self.note_access(stream, from, width, AccessKind::Read);
                if target.is == Is::Host && source.is == Is::Device {
                    self.find_uninitialised(&undefined, from, width);
                }
            }
            if writes {
                self.note_access(stream, to, width, AccessKind::Write);
                // If source bytes were never written, their copies on the device count as never
                // written too.
                for (first, end) in undefined {
                    self.note_unwritten(to + first - from, end - first);
                }
            }
        }
    }

    /// Marks bytes as never written.
    fn note_unwritten(&mut self, address: u64, bytes: u64) {
        self.for_ranges(address, bytes, |ranges, at, bytes| ranges.undefine(at, at + bytes));
    }

    /// Marks bytes as written, without a record of the work that wrote them.
    fn note_written_unseen(&mut self, address: u64, bytes: u64) {
        self.for_ranges(address, bytes, Ranges::define);
    }

    fn for_ranges(&mut self, address: u64, bytes: u64, change: impl Fn(&mut Ranges, u64, u64)) {
        let ranges = self.physical_ranges(address, bytes);
        if let Some(checker) = &mut self.state.checker {
            for (_, physical, length) in ranges {
                change(&mut checker.ranges, physical, length);
            }
        }
    }

    /// Marks host memory as written, because the host can write it unseen.
    pub(crate) fn host_wrote(&mut self, address: u64, bytes: u64) {
        if let Some(checker) = &mut self.state.checker {
            checker.ranges.define(address, bytes);
        }
    }

    /// Records an unmapping. The unmapping does not wait, so work that may still use these
    /// addresses is a conflict. Work that uses the same physical memory at other addresses is no
    /// conflict.
    pub(crate) fn note_unmap(&mut self, address: u64, mapping: &Mapping) {
        let (call, calls) = (self.symbol, self.state.calls.total);
        let Some(checker) = &self.state.checker else { return };
        let mut uses = mapping.uses.iter();
        if let Some(conflict) = uses.find(|found| !checker.host.covers(found.before.epoch)) {
            let text = checker.describe(conflict, HOST, call, "unmaps", (address, address), calls);
            self.find(FindingKind::Unordered, text);
        }
    }

    /// Forgets the records for the addresses of a new allocation.
    pub(crate) fn note_allocated(&mut self, address: u64, bytes: u64) {
        let Some(checker) = &mut self.state.checker else { return };
        checker.forget_blocks(address, bytes);
        while let Some((&base, freed)) = checker.quarantine.range(..address + bytes).next_back()
            && base + freed.bytes > address
        {
            checker.quarantine.remove(&base);
        }
    }

    /// Forgets the accesses to a freed allocation, and puts the allocation in quarantine.
    pub(crate) fn forget_range(&mut self, address: u64, gone: &Allocation) {
        let call = self.symbol;
        self.lose_blocks(address, gone.bytes);
        let Some(checker) = &mut self.state.checker else { return };
        checker.ranges.forget(address, gone.bytes);
        // If the memory was freed in stream order, the finding names the call that queued the free.
        let freed_by = if gone.freed.is_some() { "cuMemFreeAsync" } else { call };
        checker.quarantine(address, Quarantined { bytes: gone.bytes, kind: gone.kind, freed_by });
    }

    fn note_physical(
        &mut self,
        stream: u32,
        address: u64,
        physical: u64,
        bytes: u64,
        access: AccessKind,
    ) {
        let call = self.symbol;
        let state = &mut *self.state;
        let calls = state.calls.total;
        let Some(checker) = &mut state.checker else { return };
        let block = checker.block_of(address);
        let Some((lane, clock)) = checker.streams.get(&stream) else { return };
        let now = Use { epoch: clock.latest(*lane), call, block };
        if address != physical
            && let Some(mapping) = state.vmm.find_mut(address)
        {
            mapping.add_conflict(Conflict {
                first: address,
                end: address + bytes,
                before: now,
                before_wrote: access != AccessKind::Read,
            });
        }
        let conflict = match access {
            AccessKind::Read => checker.ranges.read(physical, bytes, now, clock),
            AccessKind::Write => checker.ranges.write(physical, bytes, now, clock, true),
            AccessKind::Allocate | AccessKind::Free => {
                checker.ranges.write(physical, bytes, now, clock, false)
            }
        };
        if let Some(conflict) = conflict {
            let verb = match access {
                AccessKind::Read => "reads",
                AccessKind::Write => "writes",
                AccessKind::Allocate => "allocates",
                AccessKind::Free => "frees",
            };
            let lane = now.epoch.lane;
            let text = checker.describe(&conflict, lane, call, verb, (address, physical), calls);
            self.find(FindingKind::Unordered, text);
        }
    }

    /// Returns the runs of a range that were never written, as device addresses.
    fn undefined_in(&self, address: u64, bytes: u64) -> Vec<(u64, u64)> {
        let Some(checker) = &self.state.checker else { return Vec::new() };
        let mut runs = Vec::new();
        for (offset, physical, length) in self.physical_ranges(address, bytes) {
            let virtual_base = address + offset;
            for (first, end) in checker.ranges.undefined(physical, length) {
                runs.push((virtual_base + first - physical, virtual_base + end - physical));
            }
        }
        runs
    }

    /// Returns the physical memory at a range of addresses. Each item has an offset in the range, a
    /// physical address and a length.
    fn physical_ranges(&self, address: u64, bytes: u64) -> Vec<(u64, u64, u64)> {
        let reserved =
            self.state.space.find(address).is_some_and(|(_, f)| f.kind == Kind::Reserved);
        if !reserved {
            return vec![(0, address, bytes)];
        }
        let mut ranges = Vec::new();
        let mut offset = 0;
        while offset < bytes
            && let Some((start, mapping)) = self.state.vmm.find(address + offset)
        {
            let inside = address + offset - start;
            let length = (mapping.bytes - inside).min(bytes - offset);
            ranges.push((offset, mapping.base + inside, length));
            offset += length;
        }
        ranges
    }
}

impl Checker {
    /// Describes two unordered accesses that overlap. Memory may be mapped at several addresses, so
    /// the text gives the overlap at the addresses of the later access.
    fn describe(
        &self,
        conflict: &Conflict,
        lane: Lane,
        call: &str,
        verb: &str,
        (address, physical): (u64, u64),
        calls: u64,
    ) -> String {
        let first = address + conflict.first - physical;
        let name = |lane: Lane| self.names.get(lane).map_or("a stream", String::as_str);
        let former = conflict.before.block;
        let former = former.map(|block| format!(", in {}", self.name_former(block, calls)));
        format!(
            "{call} on {} {verb} {first:#x}..{:#x} that {} on {} {} before{}, and nothing orders the two; let one wait for the other by an event, or synchronise",
            name(lane),
            first + conflict.end - conflict.first,
            conflict.before.call,
            name(conflict.before.epoch.lane),
            if conflict.before_wrote { "wrote" } else { "read" },
            former.unwrap_or_default(),
        )
    }
}
