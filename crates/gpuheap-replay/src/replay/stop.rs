//! Requests at which a replay ran out of memory.

/// Request at which a replay ran out of memory, and why. Sizes are bytes.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stop {
    /// The event's number in the file; 0 for a block that was live before the recording.
    pub event: u64,
    /// Nanoseconds since the first recorded event.
    pub time_ns: u64,
    /// Pass of the replay, 1 or 2. The second pass begins with the memory that the first pass left
    /// cached.
    pub pass: u32,
    /// Size of the request.
    pub requested: u64,
    /// Memory taken from the driver.
    pub reserved: u64,
    /// Requested bytes of the program's live blocks.
    pub live: u64,
    /// Bytes that rounding added to the program's live blocks.
    pub rounding: u64,
    /// Free memory that the pool keeps, including pending blocks.
    pub cached: u64,
    /// Freed memory that other streams still use.
    pub pending: u64,
    /// Part of `cached` that only streams other than the request's may use; `None` if not reported.
    pub other_streams: Option<u64>,
    /// Largest piece of `cached`.
    pub largest_cached: u64,
    /// Number of bytes that were missing; `None` if it is not known.
    pub short_by: Option<u64>,
    /// Limit of the pool; `None` if it may take all of the device.
    pub limit: Option<u64>,
    /// Main reason.
    pub cause: Cause,
}

/// Main reason of a request that failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The request alone is larger than the device.
    LargerThanDevice,
    /// The request alone is larger than the limit.
    LargerThanLimit,
    /// Live bytes and the request exceed the limit.
    Limit,
    /// Live bytes and the request exceed the device.
    DeviceFull,
    /// Live bytes and the request fit. Of the other memory, rounding takes the largest part.
    Rounding,
    /// Enough bytes are free, but each free piece is too small.
    #[default]
    Fragmentation,
    /// The program freed enough bytes, but queued work of other streams still uses them.
    Pending,
    /// Enough bytes are free, but only other streams may use them.
    OtherStreams,
    /// Another reason, named by the heap.
    Other(&'static str),
}

impl Cause {
    /// Returns the word that names the cause in the JSON report.
    pub fn name(self) -> &'static str {
        match self {
            Self::LargerThanDevice => "larger_than_device",
            Self::LargerThanLimit => "larger_than_limit",
            Self::Limit => "limit",
            Self::DeviceFull => "device_full",
            Self::Rounding => "rounding",
            Self::Fragmentation => "fragmentation",
            Self::Pending => "pending",
            Self::OtherStreams => "other_streams",
            Self::Other(name) => name,
        }
    }

    /// Returns the main reason of a failed request of `requested` bytes.
    ///
    /// `capacity` is the number of bytes that the pool may take. `live` is the number of bytes in
    /// use. `unused` contains four numbers of bytes: lost to rounding, pending, free for other
    /// streams only, and in other free pieces.
    pub(crate) fn find(
        requested: u64,
        live: u64,
        capacity: u64,
        is_limit: bool,
        unused: [u64; 4],
    ) -> Self {
        match is_limit {
            true if requested > capacity => Self::LargerThanLimit,
            false if requested > capacity => Self::LargerThanDevice,
            true if live.saturating_add(requested) > capacity => Self::Limit,
            false if live.saturating_add(requested) > capacity => Self::DeviceFull,
            _ => {
                let causes =
                    [Self::Rounding, Self::Pending, Self::OtherStreams, Self::Fragmentation];
                let largest = unused.into_iter().zip(causes).max_by_key(|(bytes, _)| *bytes);
                largest.map_or(Self::Fragmentation, |(_, cause)| cause)
            }
        }
    }
}
