//! Memory that ran out: the evidence, and what would have helped.

use std::fmt;
use std::panic::Location;

use gpuheap_pool::PoolKind;
use serde::Serialize;

use crate::heap::ladder::Step;
use crate::kind::MemoryKind;
use crate::size::Bytes;

/// Why there is no memory for a request, with the numbers as they stood when the last step of the
/// ladder had failed. All sizes are bytes.
///
/// Advice in the text is enough by itself: a limit raised by [`limit_short_by`], or memory freed so
/// that [`device_short_by`] bytes more go back to the device. Freed blocks count as far as whole
/// segments become free, for only these go back; a single block of at least the requested size is
/// enough too. On WSL2, whose driver calls more free than there is, the figures are the least. So is
/// that of `pinned_limit`, which is set when the heap is built, if a pool has memory live: with a higher
/// limit it may have taken larger segments for that. With nothing live, and for `none`, it is exact.
///
/// [`limit_short_by`]: OutOfMemory::limit_short_by
/// [`device_short_by`]: OutOfMemory::device_short_by
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// What was asked for.
    pub requested: u64,
    /// Of what kind of memory.
    pub kind: MemoryKind,
    /// The policy.
    pub pool: PoolKind,
    /// What is in the way.
    pub cause: Cause,
    /// How many bytes more would have had to go back to the driver for the request to succeed,
    /// whichever blocks they are of: the larger of the next two. `None` if that is not known.
    pub short_by: Option<u64>,
    /// By how much the hard limit is too low.
    pub limit_short_by: u64,
    /// By how much too little of the device is free. `None` if the driver does not say how much is
    /// free, or refuses what it calls free.
    pub device_short_by: Option<u64>,
    /// Bytes that the request would take from the driver, by the driver's rounding, with all that
    /// is cached given back.
    pub needed: u64,
    /// Handed out, as requested.
    pub live: u64,
    /// Handed out, the policy's rounding included.
    pub live_blocks: u64,
    /// Freed, their streams not known to be there yet.
    pub pending: u64,
    /// Held by the pool and free, pending ones included.
    pub cached: u64,
    /// The largest of these in one piece.
    pub largest_cached_block: u64,
    /// Of these, bytes that only other streams may use.
    pub cached_on_other_streams: u64,
    /// Taken from the driver by this heap, by the driver's rounding if the driver says.
    pub reserved: u64,
    /// Taken from the driver by other heaps of this process on the device; for unified memory also by
    /// this heap's device memory, for pinned memory the pinned memory of other heaps.
    pub other_heaps: u64,
    /// Of that, bytes that are cached: free, pending ones included. The rest is live.
    pub other_heaps_cached: u64,
    /// Taken by others: other libraries of this process, contexts, other processes. `None` if the
    /// driver does not say.
    pub foreign: Option<u64>,
    /// The device's memory; of the host, and so below, for pinned memory. `None` if it is not known.
    pub device: Option<u64>,
    /// Bytes of it that the driver called free. `None` if it does not say.
    pub device_free: Option<u64>,
    /// The heap's hard limit for this kind of memory.
    pub limit: Option<u64>,
    /// `true` if the limit cannot be raised as far as would be needed: the pool of a `driver` heap
    /// is built with it.
    pub limit_is_fixed: bool,
    /// `true` if the device is one that Windows lends to Linux.
    pub on_wsl2: bool,
    /// With tracking on, the lines that hold the most of this kind of memory, most bytes first.
    pub consumers: Vec<Consumer>,
    /// The steps of the ladder, in order, with the bytes that each gave back to the driver.
    pub tried: Vec<(Step, u64)>,
}

/// A line of the program and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consumer {
    /// The line that allocated.
    pub at: &'static Location<'static>,
    /// Allocations of it that are outstanding.
    pub allocations: u64,
    /// Their bytes, as requested.
    pub bytes: u64,
}

/// What is in the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// The request alone is larger than the device.
    LargerThanDevice,
    /// The request alone is larger than the hard limit.
    LargerThanLimit,
    /// What is live and the request together exceed the hard limit.
    Limit,
    /// What is live and the request together exceed the device.
    DeviceFull,
    /// Enough bytes are cached, in pieces that are too small.
    Fragmentation,
    /// Other heaps of this process hold what is missing, and cannot give it back by themselves.
    OtherHeaps,
    /// Other libraries and processes hold what is missing.
    Foreign,
    /// The driver refuses memory that it calls free, or gives no more of this kind of memory. Which
    /// request would succeed is not known.
    Refused,
    /// A stream is capturing a graph, and can neither wait for what others freed nor be waited for.
    Capture,
}

impl Cause {
    /// One word for it, as in the JSON of `gpuheap replay`.
    pub fn name(self) -> &'static str {
        match self {
            Cause::LargerThanDevice => "larger_than_device",
            Cause::LargerThanLimit => "larger_than_limit",
            Cause::Limit => "limit",
            Cause::DeviceFull => "device_full",
            Cause::Fragmentation => "fragmentation",
            Cause::OtherHeaps => "other_heaps",
            Cause::Foreign => "foreign",
            Cause::Refused => "refused",
            Cause::Capture => "capture",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::LargerThanDevice => "the request is larger than the device",
            Cause::LargerThanLimit => "the request is larger than the limit",
            Cause::Limit => "the limit is reached",
            Cause::DeviceFull => "the device is full",
            Cause::Fragmentation => "the cached memory is in pieces that are too small",
            Cause::OtherHeaps => "other heaps of this process hold the rest of the device",
            Cause::Foreign => "others hold the rest of the device",
            Cause::Refused => "the driver refuses it, though it calls that much free",
            Cause::Capture => {
                "a stream that captures a graph cannot wait, or be waited for, for what \
                               was freed"
            }
        })
    }
}

impl OutOfMemory {
    /// What would have made the request succeed, in one sentence.
    pub fn remedy(&self) -> String {
        self.remedy_naming("")
    }

    /// The text of the error for a program that knows this library by other names: `knobs` is where a
    /// limit is set, in its words, such as "the flag --limit".
    pub fn text_naming(&self, knobs: &str) -> String {
        let mut text = String::new();
        // A string takes all that is written.
        let _ = self.write(&mut text, knobs);
        text
    }

    /// The same with `knobs` after the limit that is to be raised.
    fn remedy_naming(&self, knobs: &str) -> String {
        let on_host = self.is_on_host();
        let place = if on_host { "host" } else { "device" };
        match self.cause {
            Cause::Refused => self.remedy_of_refusal(),
            Cause::LargerThanDevice => {
                let larger = match self.device_short_by {
                    Some(short) if !on_host && self.limit_short_by == 0 && !self.on_wsl2 => {
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
            Cause::Limit => {
                let (raised, beside) = (self.raised(knobs), self.freed_beside());
                match self.freed_here() {
                    Some(freed) => format!("{raised}{beside}, or {freed}"),
                    None => raised + &beside,
                }
            }
            Cause::DeviceFull => self.freed(),
            Cause::Fragmentation => {
                let (cached, largest) = (Bytes(self.cached), Bytes(self.largest_cached_block));
                let more = match self.limit_short_by {
                    0 => self.freed(),
                    _ => self.raised(knobs) + &self.freed_beside(),
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

    /// How the limit is to be raised.
    fn raised(&self, knobs: &str) -> String {
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

    /// Returns `true` if the pool of a heap that is built with a higher limit may take more for what is
    /// live now.
    fn may_take_larger_segments(&self) -> bool {
        self.pool != PoolKind::None && self.live_blocks > 0
    }

    /// Names the memory that has to be free as well if the limit is raised.
    fn freed_beside(&self) -> String {
        match self.device_short_by {
            None | Some(0) => String::new(),
            Some(short) => format!(" and free {} of the device", self.amount(short)),
        }
    }

    /// Names the memory of this heap that is to be freed, if that can be enough.
    fn freed_here(&self) -> Option<String> {
        let short = self.short_by?;
        let is_there = self.live_blocks > 0 && self.reserved >= short;
        is_there.then(|| format!("free {} first, in whole segments", self.amount(short)))
    }

    /// Names the memory of the device or the host that is to be freed, by any program.
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

    /// A number of bytes that is enough when it is typed again.
    fn amount(&self, bytes: u64) -> String {
        let least = if self.on_wsl2 && !self.is_on_host() { "at least " } else { "" };
        format!("{least}{:#}", Bytes(bytes))
    }

    fn remedy_of_refusal(&self) -> String {
        const UNKNOWN: &str = "the largest request that would succeed is not known";
        match self.kind {
            // Seen: 0.5 GiB under Docker Desktop, 0.75 to 1 GiB on a host of 63 GiB.
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
                 ask for less, or close what may hold memory"
            ),
            _ => format!(
                "the driver may keep it to itself, or another process was faster; {UNKNOWN}; ask \
                 for less, or end what may hold memory"
            ),
        }
    }
}

/// A figure that the driver may not have told.
fn or_unknown(bytes: Option<u64>) -> String {
    bytes.map_or("an unknown amount".to_owned(), |bytes| Bytes(bytes).to_string())
}

impl OutOfMemory {
    fn is_on_host(&self) -> bool {
        matches!(self.kind, MemoryKind::Pinned | MemoryKind::Registered)
    }

    fn because(&self) -> String {
        let on_host = self.is_on_host();
        // A request that only the pool's rounding makes too large.
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
            false => "",
            true => "; on WSL2 a heap that is given none gets 80 % of what is free",
        };
        write!(
            f,
            "out of {memory} memory: {} requested, {} {}; {} ({}; {}",
            Bytes(self.requested),
            match self.short_by {
                Some(short) => format!("{} short, because", Bytes(short)),
                None => "but".to_owned(),
            },
            self.because(),
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

/// The figures, without those that are zero.
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
                details.map(|(what, bytes)| format!("{} {what}, ", Bytes(bytes))).collect();
            let (cached, largest) = (Bytes(self.cached), Bytes(self.largest_cached_block));
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

    fn place_text(&self) -> String {
        let place = if self.is_on_host() { "host" } else { "device" };
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
        text
    }

    fn tried_text(&self) -> String {
        let gave = self.tried.iter().filter(|(_, bytes)| *bytes > 0);
        let gave: Vec<_> =
            gave.map(|(step, bytes)| format!("{step} ({} back)", Bytes(*bytes))).collect();
        match (gave.len(), self.tried.len() - gave.len()) {
            (0, 1) => "the one step of the ladder gave nothing back".to_owned(),
            (0, vain) => format!("all {vain} steps of the ladder gave nothing back"),
            (_, 0) => format!("tried: {}", gave.join(", ")),
            (_, 1) => format!("tried: {}, one more step in vain", gave.join(", ")),
            (_, vain) => format!("tried: {}, {vain} more steps in vain", gave.join(", ")),
        }
    }
}
