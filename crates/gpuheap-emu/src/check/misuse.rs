//! Findings about misuse of single pointers.

use crate::emulator::Call;
use crate::finding::{Finding, FindingKind};
use crate::options::Kernels;
use crate::state::checker::Quarantined;
use crate::state::space::Kind;

impl Call<'_> {
    /// Adds a finding, if the checks are on and apply to its kind.
    pub(crate) fn find(&mut self, kind: FindingKind, text: String) {
        // Kernels that are not run write nothing, and their accesses are unknown. So findings of
        // these kinds could be wrong.
        let needs_kernels = matches!(kind, FindingKind::Uninitialised | FindingKind::Unordered);
        if needs_kernels && self.state.options.kernels == Kernels::NoOp {
            return;
        }
        if self.state.checker.is_some() {
            self.state.findings.add(Finding { kind, text });
        }
    }

    pub(crate) fn find_callback_misuse(&mut self) {
        let text = format!(
            "{} was called from a callback of the driver; callbacks must not call the driver, hand the work to another thread",
            self.symbol
        );
        self.find(FindingKind::CalledFromCallback, text);
    }

    /// Reports a free of a pointer that the called function cannot free.
    pub(crate) fn find_bad_free(&mut self, address: u64) {
        if self.state.checker.is_none() {
            return;
        }
        let call = self.symbol;
        let (kind, text) = match self.state.space.find(address) {
            Some((base, found)) if base == address && found.freed.is_some() => (
                FindingKind::DoubleFree,
                format!("{call} frees {address:#x}, which was freed before"),
            ),
            Some((base, found)) if base == address => {
                let right = match found.kind {
                    Kind::Pinned { .. } => "cuMemFreeHost",
                    Kind::Registered { .. } => "cuMemHostUnregister",
                    Kind::Reserved => "cuMemAddressFree",
                    _ => "cuMemFree",
                };
                let text = format!(
                    "{call} frees {address:#x}, which is {}; use {right}",
                    found.kind.name()
                );
                (FindingKind::WrongFree, text)
            }
            Some((base, found)) => {
                let text = format!(
                    "{call} frees {address:#x}, which is inside {} of {} bytes at {base:#x}; free {base:#x}",
                    found.kind.name(),
                    found.bytes,
                );
                (FindingKind::WrongFree, text)
            }
            None => match self.quarantined_at(address) {
                Some((base, freed)) if base == address => {
                    let text = format!(
                        "{call} frees {address:#x}, {} of {} bytes that {} freed before",
                        freed.kind.name(),
                        freed.bytes,
                        freed.freed_by,
                    );
                    (FindingKind::DoubleFree, text)
                }
                _ => (
                    FindingKind::WrongFree,
                    format!("{call} frees {address:#x}, where nothing was allocated"),
                ),
            },
        };
        self.find(kind, text);
    }

    pub(crate) fn find_leak(&mut self, address: u64) {
        if let Some(found) = self.state.space.get(address) {
            let text = format!(
                "{} of {} bytes at {address:#x} was live when {} destroyed its context; free it before",
                found.kind.name(),
                found.bytes,
                self.symbol,
            );
            self.find(FindingKind::Leak, text);
        }
    }

    /// Reports a use of an address that has no memory, or whose memory was freed.
    pub(crate) fn find_wild(&mut self, address: u64, bytes: u64) {
        let call = self.symbol;
        let (kind, text) = match self.quarantined_at(address) {
            Some((base, freed)) => (
                FindingKind::UseAfterFree,
                format!(
                    "{call} uses {bytes} bytes at {address:#x}, {} bytes into {} at {base:#x} that {} freed",
                    address - base,
                    freed.kind.name(),
                    freed.freed_by,
                ),
            ),
            None => (
                FindingKind::WildPointer,
                format!("{call} uses {bytes} bytes at {address:#x}, where the device has nothing"),
            ),
        };
        self.find(kind, text);
    }

    pub(crate) fn find_use_after_free(&mut self, address: u64, bytes: u64) {
        let text = format!(
            "{} uses {bytes} bytes at {address:#x}, which were freed in stream order before",
            self.symbol
        );
        self.find(FindingKind::UseAfterFree, text);
    }

    pub(crate) fn find_out_of_bounds(&mut self, address: u64, bytes: u64) {
        let call = self.symbol;
        let text = match self.state.space.find(address) {
            Some((base, found)) => format!(
                "{call} uses {bytes} bytes at {address:#x}, {} bytes into {} of {} bytes at {base:#x}",
                address - base,
                found.kind.name(),
                found.bytes,
            ),
            None => format!("{call} uses {bytes} bytes at {address:#x}"),
        };
        self.find(FindingKind::OutOfBounds, text);
    }

    /// Reports a copy to the host of bytes that were never written.
    pub(super) fn find_uninitialised(&mut self, runs: &[(u64, u64)], address: u64, bytes: u64) {
        if let Some((first, end)) = runs.first() {
            let text = format!(
                "{} brings {bytes} bytes at {address:#x} to the host, and {first:#x}..{end:#x} of them were never written{}",
                self.symbol,
                self.block_at(*first),
            );
            self.find(FindingKind::Uninitialised, text);
        }
    }

    fn quarantined_at(&self, address: u64) -> Option<(u64, Quarantined)> {
        let checker = self.state.checker.as_ref()?;
        let (&base, freed) = checker.quarantine.range(..=address).next_back()?;
        (address - base < freed.bytes).then_some((base, *freed))
    }
}
