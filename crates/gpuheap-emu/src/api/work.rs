//! Carries out queued work, and checks the ranges that the work may use.

use super::prelude::*;
use crate::state::host;
use crate::state::space::{Kind, is_device_address};
use crate::state::stream::{CopyWork, FillWork, OpRef, Place, Work};
use crate::{Kernels, Schedule};

/// Maximum number of bytes to copy at a time between device and host.
const BUFFER: u64 = 1 << 20;

/// Maximum bytes of a copy from the host, or of a reported fill, whose content is kept while
/// kernels are not run. Programs read back the sizes and indices that they uploaded. If the content
/// of weights and batches were kept too, the host would need as much memory as the device.
pub(super) const KEPT: u64 = 1 << 20;

impl Call<'_> {
    /// Does one piece of work, except callbacks. In a lost context, does only frees and event
    /// records.
    pub(crate) fn perform(&mut self, op: OpRef, work: Work) {
        let context = self.context_of(op.stream);
        let lost = self.alive(context).is_err();
        let outcome = match work {
            Work::Copy(work) if !lost => self.perform_copy(op.stream, &work),
            Work::Fill(work) if !lost => self.perform_fill(op.stream, &work),
            Work::Kernel(work) if !lost => self.perform_kernel(op.stream, &work),
            Work::Foreign(addresses) if !lost => {
                self.change_blocks_at(&addresses);
                return;
            }
            Work::Record(event) => {
                let now = self.state.clock;
                let record =
                    self.state.events.get_mut(event).and_then(|event| event.recorded.as_mut());
                if let Some(record) = record.filter(|record| record.op == op) {
                    record.time = Some(now);
                }
                return;
            }
            Work::FreePool(address) => return self.pool_free_done(address, op),
            Work::Release(kept, clock) => {
                return kept.iter().for_each(|kept| kept.note_launch(clock.as_deref()));
            }
            _ => return,
        };
        if let Err(code) = outcome
            && let Some(context) = self.state.contexts.at_mut(context)
        {
            context.error = Some(code);
        }
    }

    /// Returns whether work runs within the call that queues the work.
    pub(crate) fn can_run_now(&self) -> bool {
        self.state.pending == 0 && self.state.options.schedule == Schedule::Immediate
    }

    /// Checks that a range lies inside one allocation or one run of mappings, as every call
    /// requires.
    pub(crate) fn check_range(&mut self, address: u64, bytes: u64) -> Outcome {
        let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let is_found = self.find_block_misuse(address, bytes);
        let misuse: Option<fn(&mut Self, u64, u64)> = match self.state.space.find(address) {
            Some((_, found)) if found.kind == Kind::Reserved => {
                let mut at = address;
                while at < end
                    && let Some((start, mapping)) = self.state.vmm.find(at)
                {
                    at = start + mapping.bytes;
                }
                (at < end).then_some(Self::find_out_of_bounds)
            }
            Some((_, found)) if found.freed.is_some() => Some(Self::find_use_after_free),
            Some((base, found)) => (end > base + found.bytes).then_some(Self::find_out_of_bounds),
            None => Some(Self::find_wild),
        };
        let Some(find) = misuse else { return Ok(()) };
        if !is_found {
            find(self, address, bytes);
        }
        Err(INVALID_VALUE)
    }

    fn perform_fill(&mut self, stream: u32, work: &FillWork) -> Outcome {
        self.note_written(work.target, work.pitch * (work.height - 1) + work.width);
        for row in 0..work.height {
            let at = work.target + row * work.pitch;
            self.fill_at(stream, at, work.width, work.pattern)?;
        }
        Ok(())
    }

    fn fill_at(&mut self, stream: u32, address: u64, bytes: u64, pattern: [u8; 4]) -> Outcome {
        if !is_device_address(address) {
            let chunk: Vec<u8> =
                pattern.iter().copied().cycle().take(bytes.min(BUFFER) as usize).collect();
            let mut done = 0;
            while done < bytes {
                let now = (bytes - done).min(BUFFER);
                host::write(address + done, &chunk[..now as usize]);
                done += now;
            }
            return Ok(());
        }
        for (offset, physical, length) in self.translate(stream, address, bytes, true)? {
            let turned = std::array::from_fn(|i| pattern[(offset as usize + i) % 4]);
            self.state.pages.fill(physical, length, turned);
        }
        Ok(())
    }

    fn perform_copy(&mut self, stream: u32, work: &CopyWork) -> Outcome {
        if let Place::Device(target) = work.target {
            self.note_written(target, work.target_pitch * (work.height - 1) + work.width);
        }
        if let (Place::Device(target), true) = (&work.target, self.keeps_no_content(work)) {
            for row in 0..work.height {
                let at = target + row * work.target_pitch;
                for (_, physical, length) in self.translate(stream, at, work.width, true)? {
                    self.state.pages.forget(physical, length);
                }
            }
            return Ok(());
        }
        for row in 0..work.height {
            let (from, to) = (row * work.source_pitch, row * work.target_pitch);
            self.copy_at(stream, &work.target, to, &work.source, from, work.width)?;
        }
        Ok(())
    }

    /// Returns whether a copy from the host is too large for its content to be kept.
    fn keeps_no_content(&self, work: &CopyWork) -> bool {
        let large = work.width.saturating_mul(work.height) > KEPT;
        let from_host = !matches!(work.source, Place::Device(_));
        large && from_host && self.state.options.kernels == Kernels::NoOp
    }

    fn copy_at(
        &mut self,
        stream: u32,
        target: &Place,
        to: u64,
        source: &Place,
        from: u64,
        bytes: u64,
    ) -> Outcome {
        match (target, source) {
            (Place::Host(target), Place::Host(source)) => {
                host::copy(target + to, source + from, bytes as usize);
            }
            (Place::Host(target), Place::Staged(data)) => {
                host::write(target + to, &data[from as usize..][..bytes as usize]);
            }
            (Place::Device(target), Place::Staged(data)) => {
                let data = &data[from as usize..][..bytes as usize];
                for (offset, physical, length) in
                    self.translate(stream, target + to, bytes, true)?
                {
                    self.state.pages.write(physical, &data[offset as usize..][..length as usize]);
                }
            }
            (Place::Device(target), Place::Host(source)) => {
                let mut buffer = vec![0; bytes.min(BUFFER) as usize];
                for (offset, physical, length) in
                    self.translate(stream, target + to, bytes, true)?
                {
                    for (start, now) in pieces(length) {
                        let data = &mut buffer[..now as usize];
                        host::read(source + from + offset + start, data);
                        self.state.pages.write(physical + start, data);
                    }
                }
            }
            (Place::Host(target), Place::Device(source)) => {
                let mut buffer = vec![0; bytes.min(BUFFER) as usize];
                for (offset, physical, length) in
                    self.translate(stream, source + from, bytes, false)?
                {
                    for (start, now) in pieces(length) {
                        let data = &mut buffer[..now as usize];
                        self.state.pages.read(physical + start, data);
                        host::write(target + to + offset + start, data);
                    }
                }
            }
            (Place::Device(target), Place::Device(source)) => {
                self.copy_on_device(stream, target + to, source + from, bytes)?;
            }
            (Place::Staged(_), _) => {}
        }
        Ok(())
    }

    fn copy_on_device(&mut self, stream: u32, target: u64, source: u64, bytes: u64) -> Outcome {
        let targets = self.translate(stream, target, bytes, true)?;
        let sources = self.translate(stream, source, bytes, false)?;
        for &(to, into, length) in &targets {
            for &(from, out_of, available) in &sources {
                // Copy the overlap of both ranges.
                let start = to.max(from);
                let end = (to + length).min(from + available);
                if start < end {
                    self.state.pages.copy(into + start - to, out_of + start - from, end - start);
                }
            }
        }
        Ok(())
    }

    /// Returns the physical ranges of a device address range. Each has an offset, a physical
    /// address and a length.
    pub(super) fn translate(
        &self,
        stream: u32,
        address: u64,
        bytes: u64,
        write: bool,
    ) -> Outcome<Vec<(u64, u64, u64)>> {
        let lost = CUresult::ERROR_ILLEGAL_ADDRESS;
        if self.state.vmm.mappings.is_empty() {
            return Ok(vec![(0, address, bytes)]);
        }
        if self.state.space.find(address).is_none_or(|(_, found)| found.kind != Kind::Reserved) {
            return Ok(vec![(0, address, bytes)]);
        }
        let device = self.device_of_stream(stream);
        let mut ranges = Vec::new();
        let mut offset = 0;
        while offset < bytes {
            let (start, mapping) = self.state.vmm.find(address + offset).ok_or(lost)?;
            let needed = if write {
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            } else {
                CU_MEM_ACCESS_FLAGS_PROT_READ
            };
            fail_if(mapping.access_of(device) & needed != needed, lost)?;
            let inside = address + offset - start;
            let length = (mapping.bytes - inside).min(bytes - offset);
            ranges.push((offset, mapping.base + inside, length));
            offset += length;
        }
        Ok(ranges)
    }
}

/// Splits a length into pieces of the buffer's size. Each piece has a start and a length.
fn pieces(length: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..length.div_ceil(BUFFER)).map(move |i| (i * BUFFER, BUFFER.min(length - i * BUFFER)))
}
