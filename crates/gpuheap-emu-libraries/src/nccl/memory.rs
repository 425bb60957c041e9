//! Allocates the device memory that NCCL 2.28.9 takes for a communicator's channels and buffers.
//!
//! NCCL allocates each piece separately, in multiples of 2 MiB. The rules were measured after each
//! call on two H200 with NVLink and without NVLS (driver 580.159, 2026-11-28). They are exact for
//! communicators of one or two ranks. Two ranks connected by a socket took 16 MiB each. The rules
//! for cards without NVLink, and for more than two ranks, follow from NCCL's sources.

use std::ffi::{c_char, c_int};

use gpuheap_driver::Driver;

use crate::device::{Memory, driver};

/// Note on NCCL's memory.
pub(super) const NOTE: &str = "channels and buffers are by rules that were measured on two H200; \
    those of NVLS are not in the figures";

/// Granule of NCCL's allocations, in bytes.
const GRANULE: usize = 2 << 20;
/// Buffer sizes of the protocols Simple, LL and LL128, in bytes.
const PROTOCOLS: [usize; 3] = [4 << 20, 512 << 10, 120 * 640 * 8 * 8];
/// Size of a receiver's buffers on one channel, in bytes.
const RECEIVED: usize = (PROTOCOLS[0] + PROTOCOLS[1] + PROTOCOLS[2]).next_multiple_of(GRANULE);

/// Route between a machine's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Only one rank: no buffers.
    Alone,
    NvLink,
    /// PCIe, with direct access between devices.
    Pcie,
    /// PCIe without direct access: the buffers are in host memory.
    Host,
}

impl Route {
    /// Returns the route between the current device and its neighbours.
    fn new(ranks: c_int) -> Self {
        if ranks == 1 {
            return Self::Alone;
        }
        let name = device_name();
        let has_nvlink = ["V100", "A100", "A800", "H100", "H200", "H800", "B200", "B300"];
        let is_card = name.contains("PCIe") || name.contains("NVL");
        if !is_card && has_nvlink.iter().any(|model| name.contains(model)) {
            Self::NvLink
        } else if name.contains("GeForce") {
            // The driver refuses direct access between these cards.
            Self::Host
        } else {
            Self::Pcie
        }
    }

    /// Returns the number of channels for collectives, and the total number of channels.
    fn channels(self) -> [usize; 2] {
        match self {
            Self::Alone => [64, 64],
            // From logs of machines with 8 H100.
            Self::NvLink => [24, 32],
            Self::Pcie | Self::Host => [2, 2],
        }
    }

    /// Returns the bytes of all channels. A channel takes three granules, and the communicator
    /// takes two. A communicator that is not the first in its context takes one more granule.
    fn channel_bytes(self, is_first: bool) -> usize {
        (3 * self.channels()[1] + 2 + usize::from(!is_first)) * GRANULE
    }

    /// Returns the bytes of the buffers to and from the neighbours in a ring. On each channel, the
    /// sender has one granule, and the receiver has a buffer for each protocol.
    pub(super) fn buffers(self) -> usize {
        match self {
            Self::Alone | Self::Host => 0,
            Self::NvLink | Self::Pcie => self.channels()[0] * (GRANULE + RECEIVED),
        }
    }

    /// Returns the bytes of the buffers for messages to or from a peer, on all channels.
    pub(super) fn messages(self, is_receiver: bool) -> usize {
        match self {
            Self::Alone | Self::Host => 0,
            Self::NvLink | Self::Pcie => {
                self.channels()[1] * if is_receiver { RECEIVED } else { GRANULE }
            }
        }
    }
}

/// Returns the name of the current device; empty if it is unknown.
fn device_name() -> String {
    let Some(driver) = driver() else { return String::new() };
    let (mut device, mut text) = (0, [0 as c_char; 96]);
    // SAFETY: `device` and `text` are valid for the writes. The passed length is less than the
    // length of `text`.
    unsafe {
        let _ = driver.cuCtxGetDevice(&mut device);
        let _ = driver.cuDeviceGetName(text.as_mut_ptr(), text.len() as c_int - 1, device);
    }
    text.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte as u8)).collect()
}

/// Device memory of a communicator's channels.
#[derive(Debug)]
pub(super) struct Channels {
    pub(super) route: Route,
    _memory: Memory,
}

impl Channels {
    /// Allocates the memory of the channels; `None` if the device has too little memory.
    pub(super) fn new(ranks: c_int, is_first: bool) -> Option<Self> {
        let route = Route::new(ranks);
        Some(Self { route, _memory: Memory::new(route.channel_bytes(is_first))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_take_measured_memory() {
        assert_eq!(Route::Alone.channel_bytes(true), 194 * GRANULE);
        assert_eq!(Route::Alone.channel_bytes(false), 195 * GRANULE);
        assert_eq!(Route::NvLink.channel_bytes(true), 98 * GRANULE);
        assert_eq!(Route::Host.channel_bytes(true), 16 << 20);
    }

    #[test]
    fn buffers_follow_protocols() {
        assert_eq!(Route::NvLink.buffers(), 144 * GRANULE);
        assert_eq!([false, true].map(|is| Route::NvLink.messages(is) / GRANULE), [32, 160]);
        assert_eq!(Route::Pcie.buffers(), (2 * 12) << 20);
        assert_eq!(Route::Host.buffers(), 0);
    }
}
