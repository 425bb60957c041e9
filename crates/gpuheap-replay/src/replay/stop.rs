//! Requests at which a replay ran out of memory.

/// Request at which a replay ran out of memory, and why. Sizes are bytes.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stop {
    /// The event's number in the file; 0 for a block that was live before the recording.
    pub event: u64,
    /// Nanoseconds since the first recorded event.
    pub time_ns: u64,
    /// Pass of the replay, 1 or 2. The second one meets the memory that the first one left cached.
    pub pass: u32,
    /// Size of the request.
    pub requested: u64,
    /// Memory taken from the driver.
    pub reserved: u64,
    /// Memory in blocks of the program, as requested.
    pub live: u64,
    /// Memory in blocks of the program beyond the requested bytes.
    pub rounding: u64,
    /// Free memory that the pool keeps, including pending blocks.
    pub cached: u64,
    /// Freed, but still used by other streams.
    pub pending: u64,
    /// Part of `cached` that only other streams may use; `None` if the pool does not report it.
    pub other_streams: Option<u64>,
    /// Largest piece of `cached`.
    pub largest_cached: u64,
    /// Bytes that were missing; `None` if that is not known.
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
    /// The bytes that the pool adds to requests do not fit.
    Rounding,
    /// Enough is free, in pieces that are too small.
    #[default]
    Fragmentation,
    /// Enough is freed, but other streams still use it.
    Pending,
    /// Enough is free, and only other streams may use it.
    OtherStreams,
    /// Another reason, named by the heap.
    Other(&'static str),
}

impl Cause {
    /// Returns one word for the cause, as in the JSON.
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
    /// `capacity` has the bytes that the pool may take, and `live` the bytes in use. `unused` are
    /// the bytes lost to rounding, pending, of other streams, and in other free pieces.
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
