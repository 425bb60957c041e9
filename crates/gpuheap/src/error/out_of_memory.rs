//! Figures of a request that ran out of memory, and the remedy.

use std::fmt;
use std::panic::Location;

use gpuheap_pool::{PoolKind, named};
use serde::Serialize;

use super::reclaim_step::ReclaimStep;
use crate::kind::MemoryKind;
use crate::size::Bytes;

/// Figures of a request that ran out of memory, taken after the last reclaim step had failed. All
/// sizes are bytes.
///
/// Each piece of advice in the text suffices on its own: raise the limit by [`limit_short_by`] or
/// [`total_short_by`], or free memory so that [`device_short_by`] more bytes return to the device.
/// Freed blocks count only if whole segments become free, because only whole segments return to the
/// device. One freed block of at least the requested size is enough too.
///
/// Figures are lower bounds in two cases:
///
/// * On WSL2, where the driver reports more memory as free than there is.
/// * For `pinned_limit`, if a pool has live memory. The limit is set when the heap is built: with a
///   higher limit, the pool might have taken larger segments for that memory. Without live memory,
///   and for the pool `none`, the figure is exact.
///
/// [`limit_short_by`]: OutOfMemory::limit_short_by
/// [`total_short_by`]: OutOfMemory::total_short_by
/// [`device_short_by`]: OutOfMemory::device_short_by
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Size of the request.
    pub requested: u64,
    /// Kind of memory requested.
    pub kind: MemoryKind,
    /// The heap's pool.
    pub pool: PoolKind,
    /// Reason why the request failed.
    pub cause: Cause,
    /// Number of bytes that were missing: if so many bytes return to the driver, the request
    /// succeeds. This is the largest of the next three fields. `None` if it is not known.
    pub short_by: Option<u64>,
    /// Bytes by which the hard limit is too low.
    pub limit_short_by: u64,
    /// Bytes by which the [total limit](crate::TotalLimit) is too low.
    pub total_short_by: u64,
    /// Bytes by which the device's free memory is too small. `None` if the driver does not report
    /// free memory, or refuses memory that it reports as free.
    pub device_short_by: Option<u64>,
    /// Bytes that the request would take from the driver, rounded up as the driver does, if all
    /// cached memory were given back first.
    pub needed: u64,
    /// Live bytes, as requested.
    pub live: u64,
    /// Live bytes, with the pool's rounding.
    pub live_blocks: u64,
    /// Bytes freed on streams that are not known to have reached the free.
    pub pending: u64,
    /// Free bytes in the pool, including pending bytes.
    pub cached: u64,
    /// Largest contiguous piece of the cached bytes.
    pub largest_cached_block: u64,
    /// Size of the largest block that the pool could make of cached memory. `stitched` maps free
    /// pieces together for such a block. For other pools, the size is `largest_cached_block`.
    pub largest_stitchable: u64,
    /// Cached bytes that only other streams may use.
    pub cached_on_other_streams: u64,
    /// Bytes that this heap took from the driver, with the driver's own rounding if it is known.
    pub reserved: u64,
    /// Bytes that other heaps of this process took on the device. For a request of unified memory,
    /// this figure includes the device memory of this heap, because `reserved` leaves it out. For
    /// pinned memory, it is the pinned memory of other heaps.
    pub other_heaps: u64,
    /// Bytes of `other_heaps` that are cached, including pending bytes. The other bytes are live.
    pub other_heaps_cached: u64,
    /// Bytes held by other libraries of this process, by contexts and by other processes. `None` if
    /// the driver does not report them.
    pub foreign: Option<u64>,
    /// Size of the device's memory. For a request of pinned memory, this field and `device_free`
    /// are about the host's memory. `None` if the size is not known.
    pub device: Option<u64>,
    /// Bytes of `device` that the driver reports as free. `None` if it does not report them.
    pub device_free: Option<u64>,
    /// Hard limit of the heap for this kind of memory.
    pub limit: Option<u64>,
    /// Limit that the heap shares with other heaps.
    pub total_limit: Option<u64>,
    /// Bytes that the heaps under the total limit reserve on each device, by the device's name.
    /// Empty without a total limit.
    pub devices: Vec<(String, u64)>,
    /// Name of the heap's device. `None` if the process has one device.
    pub device_name: Option<String>,
    /// `true` if the limit cannot be raised far enough, because a `driver` pool is made with a
    /// fixed limit.
    pub limit_is_fixed: bool,
    /// `true` if the device is a Windows GPU under WSL2.
    pub on_wsl2: bool,
    /// Lines of the program that hold the most of this kind of memory, most bytes first. Empty
    /// unless the heap tracks allocations.
    pub consumers: Vec<Consumer>,
    /// Reclaim steps that were tried, in order. Each has the bytes that it returned to the driver.
    pub tried: Vec<(ReclaimStep, u64)>,
}

/// A line of the program, with its outstanding allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consumer {
    /// The line that allocated.
    pub at: &'static Location<'static>,
    /// Number of outstanding allocations of the line.
    pub allocations: u64,
    /// Bytes of these allocations, as requested.
    pub bytes: u64,
}

named! {
    /// Reason why a request failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum Cause {
        /// The request alone is larger than the device.
        LargerThanDevice = "larger_than_device",
        /// The request alone is larger than the hard limit.
        LargerThanLimit = "larger_than_limit",
        /// Live memory and the request together exceed the hard limit.
        Limit = "limit",
        /// The memory of all heaps under a total limit, plus the request, exceeds that limit.
        TotalLimit = "total_limit",
        /// Live memory and the request together exceed the device.
        DeviceFull = "device_full",
        /// Enough bytes are cached, but each piece is too small.
        Fragmentation = "fragmentation",
        /// Other heaps of this process hold the missing memory, and cannot give it back on their
        /// own.
        OtherHeaps = "other_heaps",
        /// Other libraries and processes hold the missing memory.
        Foreign = "foreign",
        /// The driver refuses memory that it reports as free, or gives no more of this kind of
        /// memory. It is not known which request would succeed.
        Refused = "refused",
        /// A stream is capturing a graph. It can neither wait for frees on other streams nor be
        /// waited for.
        Capture = "capture",
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::LargerThanDevice => "the request is larger than the device",
            Cause::LargerThanLimit => "the request is larger than the limit",
            Cause::Limit => "the limit is reached",
            Cause::TotalLimit => "the total limit is reached",
            Cause::DeviceFull => "the device is full",
            Cause::Fragmentation => "the cached memory is in pieces that are too small",
            Cause::OtherHeaps => "other heaps of this process hold the rest of the device",
            Cause::Foreign => "others hold the rest of the device",
            Cause::Refused => "the driver refuses it, though it calls that much free",
            Cause::Capture => {
                "a stream captures a graph, so it cannot wait for freed memory, and no stream can \
                 wait for it"
            }
        })
    }
}

impl OutOfMemory {
    /// Returns the remedy in one sentence: a change with which the request would have succeeded.
    pub fn remedy(&self) -> String {
        self.remedy_naming("")
    }

    /// Returns the error's text for a program that sets limits under its own names. `knobs` names
    /// the place where that program sets the limit, such as "the flag --limit".
    pub fn text_naming(&self, knobs: &str) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = self.write(&mut text, knobs);
        text
    }

    /// Returns the remedy. If a limit is to be raised, adds `knobs`, the text that names the place
    /// where the user sets the limit.
    fn remedy_naming(&self, knobs: &str) -> String {
        let on_host = self.is_on_host();
        let place = if on_host { "host" } else { "device" };
        match self.cause {
            Cause::Refused => self.remedy_of_refusal(),
            Cause::LargerThanDevice => {
                let larger = match self.device_short_by {
                    Some(short) if !on_host && self.is_within_limits() && !self.on_wsl2 => {
                        format!(", or use a device with {:#} more", Bytes(short))
                    }
                    _ => String::new(),
                };
                let total = or_unknown(self.device);
                format!("the {place} has {total}; work in smaller pieces{larger}")
            }
            Cause::LargerThanLimit => {
                let raised = self.raised(knobs);
                format!("{raised}{}, or work in smaller pieces", self.freed_beside())
            }
            Cause::Limit | Cause::TotalLimit => {
                let (raised, beside) = (self.raised(knobs), self.freed_beside());
                match self.freed_here() {
                    Some(freed) => format!("{raised}{beside}, or {freed}"),
                    None => raised + &beside,
                }
            }
            Cause::DeviceFull => self.freed(),
            Cause::Fragmentation => {
                let (cached, largest) = (Bytes(self.cached), self.largest_text());
                let more = match self.is_within_limits() {
                    true => self.freed(),
                    false => self.raised(knobs) + &self.freed_beside(),
                };
                match self.pool {
                    PoolKind::Split | PoolKind::Binned | PoolKind::Simple if !on_host => format!(
                        "{cached} are cached and the largest piece is {largest}; the stitched \
                         pool maps such pieces together; else {more}"
                    ),
                    _ => format!("{cached} are cached and the largest piece is {largest}; {more}"),
                }
            }
            Cause::OtherHeaps => format!(
                "free {} of the {}{} that other heaps of this process hold",
                self.amount(self.device_short_by.unwrap_or(0)),
                Bytes(self.other_heaps),
                if on_host { " of pinned memory" } else { "" }
            ),
            Cause::Foreign => format!(
                "others hold {} of the {place}{}; end them, or free {} of their memory",
                or_unknown(self.foreign),
                if on_host { "'s memory" } else { "" },
                self.amount(self.device_short_by.unwrap_or(0))
            ),
            Cause::Capture => {
                let freed =
                    self.freed_here().map_or(String::new(), |freed| format!(", or {freed}"));
                format!("allocate before the capture begins or after it ended{freed}")
            }
        }
    }

    fn is_within_limits(&self) -> bool {
        self.limit_short_by == 0 && self.total_short_by == 0
    }

    /// Returns how to raise the limits.
    fn raised(&self, knobs: &str) -> String {
        const TOTAL: &str = "GPUHEAP_TOTAL_MEMORY_LIMIT";
        let total = || {
            let short = self.amount(self.total_short_by);
            format!("raise the total limit by {short} (the program's or {TOTAL})")
        };
        match (self.limit_short_by, self.total_short_by) {
            (0, 1..) => total(),
            (_, 1..) => format!("{} and {}", self.raised_hard(knobs), total()),
            (_, 0) => self.raised_hard(knobs),
        }
    }

    fn raised_hard(&self, knobs: &str) -> String {
        let short = self.amount(self.limit_short_by);
        match self.limit_is_fixed {
            _ if self.is_on_host() && self.may_take_larger_segments() => {
                format!("raise pinned_limit by at least {short}")
            }
            _ if self.is_on_host() => format!("raise pinned_limit by {short}"),
            true => format!("build a heap with a limit that is {short} higher"),
            false => format!("raise the limit by {short}{knobs}"),
        }
    }

    /// Returns `true` if a higher limit might make the heap take larger segments for the same live
    /// blocks. The limit then has to rise by more than the missing bytes.
    fn may_take_larger_segments(&self) -> bool {
        self.pool != PoolKind::None && self.live_blocks > 0
    }

    /// Returns the advice to free device memory too, if a higher limit alone is not enough.
    fn freed_beside(&self) -> String {
        match self.device_short_by {
            None | Some(0) => String::new(),
            Some(short) => format!(" and free {} of the device", self.amount(short)),
        }
    }

    /// Returns the advice to free memory of this heap; `None` if freeing its live memory would not
    /// be enough, or if the number of missing bytes is unknown.
    fn freed_here(&self) -> Option<String> {
        let short = self.short_by?;
        let is_there = self.live_blocks > 0 && self.reserved >= short;
        is_there.then(|| format!("free {} first, in whole segments", self.amount(short)))
    }

    /// Returns the advice to free memory of the device or host, in this program or in others.
    fn freed(&self) -> String {
        let short = self.amount(self.device_short_by.unwrap_or(0));
        match self.freed_here() {
            _ if self.is_on_host() => format!("free {short} of the host's memory first"),
            Some(freed) => format!("{freed}, or use a device with {short} more"),
            None if self.live_blocks == 0 => {
                format!("{short} more of the device would have to be free, or use a larger one")
            }
            None => format!(
                "free {short} of the device first, here and elsewhere, or use a device with \
                 {short} more"
            ),
        }
    }

    /// Formats a number of bytes, rounded up, so that a limit typed as displayed is large enough.
    fn amount(&self, bytes: u64) -> String {
        let least = if self.on_wsl2 && !self.is_on_host() { "at least " } else { "" };
        format!("{least}{:#}", Bytes(bytes))
    }

    fn remedy_of_refusal(&self) -> String {
        const UNKNOWN: &str = "the largest request that would succeed is not known";
        match self.kind {
            // Most memory that could be pinned: 0.5 GiB under Docker Desktop, 0.75 to 1 GiB on a
            // host of 63 GiB.
            _ if self.is_on_host() && self.on_wsl2 => "WSL2 lets a process pin 0.5 to 1 GiB, \
                however much the host has; pin a few buffers and use them again, or use pageable \
                memory"
                .to_owned(),
            _ if self.is_on_host() => {
                format!("{UNKNOWN}; pin less, or use pageable memory")
            }
            MemoryKind::Unified => format!("{UNKNOWN}; ask for less, or use device memory"),
            _ if self.on_wsl2 => format!(
                "on WSL2 programs of Windows may hold it, or it is promised elsewhere; {UNKNOWN}; \
                 ask for less, or close programs that may hold memory"
            ),
            _ => format!(
                "the driver may keep it to itself, or another process was faster; {UNKNOWN}; ask \
                 for less, or end processes that may hold memory"
            ),
        }
    }
}

/// Formats a figure that the driver may not have reported.
fn or_unknown(bytes: Option<u64>) -> String {
    bytes.map_or("an unknown amount".to_owned(), |bytes| Bytes(bytes).to_string())
}

impl OutOfMemory {
    fn is_on_host(&self) -> bool {
        matches!(self.kind, MemoryKind::Pinned | MemoryKind::Registered)
    }

    fn reason_text(&self) -> String {
        let on_host = self.is_on_host();
        // If the request exceeds the bound only because of the pool's rounding, the text has the
        // rounded size too.
        let rounded = |bound: Option<u64>| match bound {
            Some(bound) if self.requested <= bound => format!(
                "the request, which the {} pool rounds up to {},",
                self.pool,
                Bytes(self.needed)
            ),
            _ => "the request".to_owned(),
        };
        match self.cause {
            Cause::LargerThanLimit => format!("{} is larger than the limit", rounded(self.limit)),
            Cause::LargerThanDevice => {
                let place = if on_host { "host's memory" } else { "device" };
                format!("{} is larger than the {place}", rounded(self.device))
            }
            Cause::Refused if on_host => "the driver gives no more of it".to_owned(),
            Cause::Refused => match self.device_free {
                Some(free) => format!(
                    "the driver refuses {} of the {} that it calls free",
                    Bytes(self.needed),
                    Bytes(free)
                ),
                None => "the driver refuses it, and does not say how much is free".to_owned(),
            },
            Cause::DeviceFull if on_host => "the host's memory is full".to_owned(),
            Cause::OtherHeaps if on_host => {
                "other heaps of this process hold the rest of the host's memory".to_owned()
            }
            Cause::Foreign if on_host => "others hold the rest of the host's memory".to_owned(),
            Cause::Limit if on_host => "the limit of pinned memory is reached".to_owned(),
            cause => cause.to_string(),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "HeapBuilder::hard_limit, Heap::set_limits or GPUHEAP_MEMORY_LIMIT")
    }
}

impl OutOfMemory {
    fn write(&self, f: &mut dyn fmt::Write, knobs: &str) -> fmt::Result {
        let memory = match self.kind {
            MemoryKind::Device => "GPU",
            MemoryKind::Unified => "unified",
            MemoryKind::Pinned => "pinned host",
            MemoryKind::Registered => "registered host",
        };
        let by_default = match self.on_wsl2 {
            false => String::new(),
            true => format!(
                "; on WSL2 a heap that is given none gets {} % of what is free",
                gpuheap_driver::wsl2::USABLE_PERCENT
            ),
        };
        write!(
            f,
            "out of {memory} memory: {} requested, {} {}; {} ({}; {}",
            Bytes(self.requested),
            match self.short_by {
                Some(short) => format!("{} short, because", Bytes(short)),
                None => "but".to_owned(),
            },
            self.reason_text(),
            self.remedy_naming(&format!(" ({knobs}{by_default})")),
            self.pool_text(),
            self.place_text()
        )?;
        for (index, Consumer { at, allocations, bytes }) in self.consumers.iter().enumerate() {
            let before = if index == 0 { "; most is held by" } else { "," };
            let (file, line) = (at.file(), at.line());
            write!(f, "{before} {file}:{line} ({} in {allocations})", Bytes(*bytes))?;
        }
        if !self.tried.is_empty() {
            write!(f, "; {}", self.tried_text())?;
        }
        f.write_str(")")
    }
}

/// The figures, without zeros.
impl OutOfMemory {
    fn pool_text(&self) -> String {
        let mut parts = Vec::new();
        match (self.live, self.live_blocks) {
            (0, 0) => {}
            (live, blocks) if live == blocks => parts.push(format!("{} live", Bytes(live))),
            (live, blocks) => {
                parts.push(format!("{} live in blocks of {}", Bytes(live), Bytes(blocks)));
            }
        }
        if self.cached > 0 {
            let details =
                [("pending", self.pending), ("on other streams", self.cached_on_other_streams)];
            let details = details.into_iter().filter(|(_, bytes)| *bytes > 0);
            let details: String =
                details.map(|(label, bytes)| format!("{} {label}, ", Bytes(bytes))).collect();
            let (cached, largest) = (Bytes(self.cached), self.largest_text());
            parts.push(format!("{cached} cached ({details}largest {largest})"));
        }
        match (self.reserved, self.limit) {
            (0, None) if parts.is_empty() => parts.push("nothing reserved".to_owned()),
            (0, None) => {}
            (reserved, None) => parts.push(format!("{} reserved", Bytes(reserved))),
            (reserved, Some(limit)) => {
                parts.push(format!("{} reserved of a limit of {}", Bytes(reserved), Bytes(limit)));
            }
        }
        format!("{} pool: {}", self.pool, parts.join(", "))
    }

    /// Returns a text with the size of the largest cached piece. If pieces can be mapped together
    /// to a larger block, the text also has the size of that block.
    fn largest_text(&self) -> String {
        let largest = Bytes(self.largest_cached_block);
        match self.largest_stitchable {
            most if most <= self.largest_cached_block => largest.to_string(),
            most => format!("{largest}, or {} of pieces mapped together", Bytes(most)),
        }
    }

    fn place_text(&self) -> String {
        let place = match &self.device_name {
            _ if self.is_on_host() => "host",
            Some(name) => name,
            None => "device",
        };
        let total = or_unknown(self.device);
        let mut text = match self.device_free {
            Some(free) => format!("{place}: {} of {total} free", Bytes(free)),
            None => format!("{place}: {total}, of which the driver does not say how much is free"),
        };
        if self.other_heaps > 0 {
            let (held, cached) = (Bytes(self.other_heaps), Bytes(self.other_heaps_cached));
            let live = Bytes(self.other_heaps.saturating_sub(self.other_heaps_cached));
            text += &format!(", {held} in other heaps ({live} live, {cached} cached)");
        }
        if let Some(foreign @ 1..) = self.foreign {
            text += &format!(", {} foreign", Bytes(foreign));
        }
        if let Some(limit) = self.total_limit {
            let parts =
                self.devices.iter().map(|(name, held)| format!("{} on {name}", Bytes(*held)));
            let parts: Vec<_> = parts.collect();
            text += &format!("; total limit of {}: {}", Bytes(limit), parts.join(", "));
        }
        text
    }

    fn tried_text(&self) -> String {
        let gave = self.tried.iter().filter(|(_, bytes)| *bytes > 0);
        let gave: Vec<_> =
            gave.map(|(step, bytes)| format!("{step} ({} back)", Bytes(*bytes))).collect();
        match (gave.len(), self.tried.len() - gave.len()) {
            (0, 1) => "tried 1 reclaim step; it freed no memory".to_owned(),
            (0, vain) => format!("tried {vain} reclaim steps; none freed memory"),
            (_, 0) => format!("tried: {}", gave.join(", ")),
            (_, 1) => format!("tried: {}, one more step in vain", gave.join(", ")),
            (_, vain) => format!("tried: {}, {vain} more steps in vain", gave.join(", ")),
        }
    }
}
