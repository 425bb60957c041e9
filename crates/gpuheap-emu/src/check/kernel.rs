//! Checks of the memory ranges that a kernel uses. They run during the launch call.

use gpuheap_driver::CUresult;

use crate::Outcome;
use crate::emulator::Call;
use crate::finding::FindingKind;
use crate::kernels::{Access as KernelAccess, Kernel, Region};
use crate::state::access::AccessKind;

/// Maximum number of runs of a strided access that are checked one by one. An access with more runs
/// is not checked, so that no correct program is reported. Bytes that such an access writes count
/// as written, and its uses are not recorded.
const MOST_RUNS: u64 = 1 << 16;

impl Call<'_> {
    /// Checks and records the memory that a kernel uses, with `words` as its parameter. If the
    /// kernel faults, returns the fault's code, and the context is lost.
    pub(crate) fn note_kernel(&mut self, stream: u32, kernel: Kernel, words: &[u64]) -> Outcome {
        let mut accesses = Vec::new();
        for access in kernel.accesses(words) {
            if access.region.run != 0 && access.region.runs() != 0 {
                let bounds = self.check_access(stream, kernel, &access)?;
                accesses.push((access, bounds));
            }
        }
        if self.state.checker.is_none() || self.state.captures.is_recording(stream) {
            return Ok(());
        }
        let mut copies_unwritten = false;
        for (access, (address, bytes)) in &accesses {
            if access.writes {
                continue;
            }
            let known = self.state.findings.count();
            if !self.undefined_in(*address, *bytes).is_empty() {
                copies_unwritten |= kernel.only_copies();
                if !kernel.only_copies() {
                    self.find_unwritten_use(kernel, &access.region);
                }
            }
            if access.region.runs() <= MOST_RUNS {
                let run = access.region.run;
                access
                    .region
                    .for_each_run(|at| self.note_access(stream, at, run, AccessKind::Read));
            }
            // One finding for each array is enough.
            self.state.findings.keep_one_after(known);
        }
        let unwritten =
            if copies_unwritten { self.unwritten_copies(kernel, words) } else { vec![] };
        for (access, (address, bytes)) in &accesses {
            if !access.writes {
                continue;
            }
            let known = self.state.findings.count();
            if access.region.runs() <= MOST_RUNS {
                let run = access.region.run;
                access
                    .region
                    .for_each_run(|at| self.note_access(stream, at, run, AccessKind::Write));
            } else {
                self.note_written_unseen(*address, *bytes);
            }
            self.state.findings.keep_one_after(known);
        }
        for (address, bytes) in unwritten {
            self.note_unwritten(address, bytes);
        }
        Ok(())
    }

    /// Returns the address and length of the range from the first to the last byte of an access.
    /// Returns an error if the kernel may not use the range.
    fn check_access(
        &mut self,
        stream: u32,
        kernel: Kernel,
        access: &KernelAccess,
    ) -> Outcome<(u64, u64)> {
        let illegal = CUresult::ERROR_ILLEGAL_ADDRESS;
        let region = &access.region;
        let Some((address, bytes)) = region.bounds() else {
            self.find_wild(region.address, region.run);
            return Err(illegal);
        };
        self.check_range(address, bytes).map_err(|_| illegal)?;
        if !self.kernel_reaches(stream, address) {
            let text = format!(
                "{} of {} uses {bytes} bytes at {address:#x}, memory of another device that this one has no access to; enable peer access first",
                self.symbol,
                kernel.name(),
            );
            self.find(FindingKind::WildPointer, text);
            return Err(illegal);
        }
        let steps = region.axes.iter().map(|(_, stride)| stride.unsigned_abs());
        if steps.chain([region.address]).any(|step| !step.is_multiple_of(access.align)) {
            let text = format!(
                "{} of {} uses {address:#x}, and its elements have to lie on multiples of {} bytes",
                self.symbol,
                kernel.name(),
                access.align,
            );
            self.find(FindingKind::WildPointer, text);
            return Err(CUresult::ERROR_MISALIGNED_ADDRESS);
        }
        Ok((address, bytes))
    }

    /// Reports a computation with bytes that were never written.
    fn find_unwritten_use(&mut self, kernel: Kernel, region: &Region) {
        if region.runs() > MOST_RUNS {
            return;
        }
        let mut found = None;
        region.for_each_run(|at| {
            if found.is_none() {
                found = self.undefined_in(at, region.run).first().copied();
            }
        });
        if let Some((first, end)) = found {
            let text = format!(
                "{} of {} reads {first:#x}..{end:#x}, which were never written{}",
                self.symbol,
                kernel.name(),
                self.block_at(first),
            );
            self.find(FindingKind::Uninitialised, text);
        }
    }

    /// Returns the target ranges of a copying kernel whose source bytes were never written.
    fn unwritten_copies(&self, kernel: Kernel, words: &[u64]) -> Vec<(u64, u64)> {
        let mut unwritten = Vec::new();
        kernel.for_each_copied(words, |to, from, bytes| {
            let runs = self.undefined_in(from, bytes);
            unwritten.extend(runs.iter().map(|(first, end)| (to + first - from, end - first)));
        });
        unwritten
    }
}
