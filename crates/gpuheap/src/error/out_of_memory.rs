//! Memory that ran out: the evidence, and what would have helped.

use std::fmt;
use std::panic::Location;

use serde::Serialize;

use crate::heap::ladder::Step;
use crate::kind::MemoryKind;
use crate::pool::PoolKind;
use crate::size::Bytes;

/// Why there is no memory for a request, with the numbers as they stood when the last step of the
/// ladder had failed. All sizes are bytes.
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
    /// How much more would have had to be free, or allowed, for the request to succeed.
    pub short_by: u64,
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
    /// Taken from the driver by this heap.
    pub reserved: u64,
    /// Taken from the driver by other heaps of this process on the device; for unified memory also by
    /// this heap's device memory, for pinned memory the pinned memory of other heaps.
    pub other_heaps: u64,
    /// Of that, bytes that are cached: free, pending ones included. The rest is live.
    pub other_heaps_cached: u64,
    /// Taken by others: other libraries of this process, contexts, other processes.
    pub foreign: u64,
    /// The device's memory; of the host, and so below, for pinned memory.
    pub device: u64,
    /// What of it the driver called free.
    pub device_free: u64,
    /// The heap's hard limit for this kind of memory.
    pub limit: Option<u64>,
    /// Whether the device is one that Windows lends to Linux.
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
    /// The driver gives no more of this kind of memory, though what it is made of is not full.
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
            Cause::Refused => "the driver gives no more of it",
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
        let short = Bytes(self.short_by);
        if self.is_on_host() {
            return self.remedy_on_host();
        }
        match self.cause {
            Cause::Refused => format!("free {short} of it first, or use device memory"),
            Cause::LargerThanDevice => format!(
                "the device has {}; work in smaller pieces, or use a device with {} more",
                Bytes(self.device),
                short
            ),
            Cause::LargerThanLimit => {
                format!("raise the limit by {short}{knobs}, or work in smaller pieces")
            }
            Cause::Limit => format!("raise the limit by {short}{knobs}, or free as much first"),
            Cause::DeviceFull => format!("free {short} first, or use a device with {short} more"),
            Cause::Fragmentation => {
                let enough = match self.pool {
                    PoolKind::Stitched => format!("{short} more would do"),
                    _ => format!("a pool that moves pages, or {short} more, would do"),
                };
                format!(
                    "{} are cached and the largest piece is {}; {enough}",
                    Bytes(self.cached),
                    Bytes(self.largest_cached_block)
                )
            }
            Cause::OtherHeaps => format!(
                "free {short} of the {} that other heaps of this process hold",
                Bytes(self.other_heaps)
            ),
            Cause::Foreign => format!(
                "others hold {} of the device; end them, or free {short} of their memory",
                Bytes(self.foreign)
            ),
            Cause::Capture => format!(
                "allocate before the capture begins or after it ended, or free {short} first"
            ),
        }
    }
}

impl OutOfMemory {
    fn is_on_host(&self) -> bool {
        matches!(self.kind, MemoryKind::Pinned | MemoryKind::Registered)
    }

    fn remedy_on_host(&self) -> String {
        let short = Bytes(self.short_by);
        match self.cause {
            Cause::LargerThanDevice => {
                format!("the host has {}; work in smaller pieces", Bytes(self.device))
            }
            Cause::LargerThanLimit => {
                format!("raise pinned_limit by {short}, or work in smaller pieces")
            }
            Cause::Limit => format!("raise pinned_limit by {short}, or free as much first"),
            Cause::DeviceFull => format!("free {short} of the host's memory first"),
            Cause::Fragmentation => format!(
                "{} are cached and the largest piece is {}; {short} more would do",
                Bytes(self.cached),
                Bytes(self.largest_cached_block)
            ),
            Cause::OtherHeaps => format!(
                "free {short} of the {} of pinned memory that other heaps of this process hold",
                Bytes(self.other_heaps)
            ),
            Cause::Foreign => format!(
                "others hold {} of the host's memory; end them, or free {short}",
                Bytes(self.foreign)
            ),
            Cause::Capture => format!(
                "allocate before the capture begins or after it ended, or free {short} first"
            ),
            // Seen: 0.5 GiB under Docker Desktop, 0.75 to 1 GiB on a host of 63 GiB.
            Cause::Refused if self.on_wsl2 => "WSL2 lets a process pin 0.5 to 1 GiB, however much \
                the host has; pin a few buffers and use them again, or use pageable memory"
                .to_owned(),
            Cause::Refused => {
                format!("free {short} of pinned memory first, or use pageable memory")
            }
        }
    }

    fn because(&self) -> String {
        match self.cause {
            cause if !self.is_on_host() => cause.to_string(),
            Cause::LargerThanDevice => "the request is larger than the host's memory".to_owned(),
            Cause::DeviceFull => "the host's memory is full".to_owned(),
            Cause::OtherHeaps => {
                "other heaps of this process hold the rest of the host's memory".to_owned()
            }
            Cause::Foreign => "others hold the rest of the host's memory".to_owned(),
            Cause::Limit => "the limit of pinned memory is reached".to_owned(),
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
            "out of {memory} memory: {} requested, {} short, because {}; {} ({}; {}",
            Bytes(self.requested),
            Bytes(self.short_by),
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
        let (free, total) = (Bytes(self.device_free), Bytes(self.device));
        let mut text = format!("{place}: {free} of {total} free");
        if self.other_heaps > 0 {
            let (held, cached) = (Bytes(self.other_heaps), Bytes(self.other_heaps_cached));
            let live = Bytes(self.other_heaps.saturating_sub(self.other_heaps_cached));
            text += &format!(", {held} in other heaps ({live} live, {cached} cached)");
        }
        if self.foreign > 0 {
            text += &format!(", {} foreign", Bytes(self.foreign));
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
