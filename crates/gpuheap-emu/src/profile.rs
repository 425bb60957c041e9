//! Profiles of the devices that an emulated device imitates.

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Properties of the device that an emulated device imitates. Any field may be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name that `cuDeviceGetName` returns, with a note that the device is emulated.
    pub name: String,
    /// Memory of the device as the driver reports it, in bytes.
    pub memory_bytes: u64,
    /// Memory that a context takes, in bytes.
    pub context_bytes: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Number of multiprocessors.
    pub multiprocessors: i32,
    /// Clock of the multiprocessors, kHz.
    pub clock_khz: i32,
    /// Clock of the memory, kHz.
    pub memory_clock_khz: i32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: i32,
    /// Size of the L2 cache, in bytes.
    pub l2_cache_bytes: i32,
    /// True if Linux uses the device of a Windows host through WSL2.
    pub wsl2: bool,
    /// True if the device has virtual memory management.
    pub vmm: bool,
    /// True if the device has stream-ordered pools.
    pub pools: bool,
    /// True if host and device may use managed memory at the same time. If false, managed memory
    /// takes memory of the device and can be neither prefetched nor advised.
    pub concurrent_managed_access: bool,
    /// Limit of pinned host memory, in bytes; `None` for no limit.
    pub pinned_limit: Option<u64>,
    /// Bytes by which the free memory that `cuMemGetInfo` reports exceeds the memory that can be
    /// allocated.
    pub free_overstated_bytes: u64,
    /// Number of driver calls after a free until the freed device memory can be allocated again.
    pub late_release_calls: u64,
}

impl Profile {
    /// Names that [`named`](Profile::named) accepts.
    pub const NAMES: &[&str] = &["h200", "rtx4090", "t4", "wsl2-rtx4060"];

    /// Returns the profile with a name of [`NAMES`](Profile::NAMES); `None` for any other name.
    pub fn named(name: &str) -> Option<Profile> {
        match name {
            "h200" => Some(Profile::h200()),
            "rtx4090" => Some(Profile::rtx4090()),
            "t4" => Some(Profile::t4()),
            "wsl2-rtx4060" => Some(Profile::wsl2_rtx4060()),
            _ => None,
        }
    }

    /// Parses a list of devices from an environment variable. Commas separate the devices. Each
    /// device is a name of [`NAMES`](Profile::NAMES), a size such as `16GiB`, or a description such
    /// as `name=RTX 3090;memory=24258MiB;capability=8.6`. Returns `None` if an entry has another
    /// form.
    ///
    /// A description changes values of an `h200`. `memory` is required. If `context` is missing, it
    /// is `0`. The other keys are `name`, `sms` (multiprocessors), `capability`, `vmm` and `pools`
    /// (`0` or `1`).
    pub fn list(text: &str) -> Option<Vec<Profile>> {
        text.split(',').map(|one| Profile::parse(one.trim())).collect()
    }

    /// Parses one device. `text` is a name, a size for [`with_memory`](Profile::with_memory), or a
    /// description.
    fn parse(text: &str) -> Option<Profile> {
        Profile::named(text)
            .or_else(|| bytes(text).map(Profile::with_memory))
            .or_else(|| Profile::described(text))
    }

    /// Parses a description: `name=RTX 3090;memory=24258MiB`.
    fn described(text: &str) -> Option<Profile> {
        let mut profile = Profile::with_memory(0);
        for part in text.split(';') {
            let (key, value) = part.split_once('=')?;
            match key.trim() {
                "name" => profile.name = format!("emulated {}", value.trim()),
                "memory" => profile.memory_bytes = bytes(value)?,
                "context" if value == "0" => profile.context_bytes = 0,
                "context" => profile.context_bytes = bytes(value)?,
                "sms" => profile.multiprocessors = value.parse().ok().filter(|&sms| sms > 0)?,
                "capability" => {
                    let (major, minor) = value.split_once('.')?;
                    profile.compute_capability = (major.parse().ok()?, minor.parse().ok()?);
                }
                "vmm" => profile.vmm = switch(value)?,
                "pools" => profile.pools = switch(value)?,
                _ => return None,
            }
        }
        (profile.memory_bytes > 0).then_some(profile)
    }

    /// Returns a device on which exactly `bytes` bytes can be allocated, because contexts take no
    /// memory. All other properties are as in [`h200`](Profile::h200).
    pub fn with_memory(bytes: u64) -> Profile {
        Profile {
            name: "emulated device".to_owned(),
            memory_bytes: bytes,
            context_bytes: 0,
            ..Profile::h200()
        }
    }

    /// Returns an NVIDIA H200 SXM. The sizes of its memory and its context were measured with
    /// driver 580.
    pub fn h200() -> Profile {
        Profile {
            name: "emulated NVIDIA H200".to_owned(),
            memory_bytes: 150_109_880_320,
            context_bytes: 552_402_944,
            compute_capability: (9, 0),
            multiprocessors: 132,
            clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6016,
            l2_cache_bytes: 60 << 20,
            wsl2: false,
            vmm: true,
            pools: true,
            concurrent_managed_access: true,
            pinned_limit: None,
            free_overstated_bytes: 0,
            late_release_calls: 0,
        }
    }

    /// Returns an NVIDIA GeForce RTX 4090. The memory size is from the data sheet, minus the bytes
    /// that drivers reserve. The context size is an estimate.
    pub fn rtx4090() -> Profile {
        Profile {
            name: "emulated NVIDIA GeForce RTX 4090".to_owned(),
            memory_bytes: 24 * GIB - 500 * MIB,
            context_bytes: 380 * MIB,
            compute_capability: (8, 9),
            multiprocessors: 128,
            clock_khz: 2_520_000,
            memory_clock_khz: 10_501_000,
            memory_bus_bits: 384,
            l2_cache_bytes: 72 << 20,
            ..Profile::h200()
        }
    }

    /// Returns an NVIDIA T4. The memory size is from the data sheet, minus the bytes that drivers
    /// reserve. The context size is an estimate.
    pub fn t4() -> Profile {
        Profile {
            name: "emulated Tesla T4".to_owned(),
            memory_bytes: 15 * GIB - 260 * MIB,
            context_bytes: 104 * MIB,
            compute_capability: (7, 5),
            multiprocessors: 40,
            clock_khz: 1_590_000,
            memory_clock_khz: 5_001_000,
            memory_bus_bits: 256,
            l2_cache_bytes: 4 << 20,
            ..Profile::h200()
        }
    }

    /// Returns an NVIDIA GeForce RTX 4060 under WSL2. It has no virtual memory management, no
    /// concurrent managed access and little pinned memory. It reports too much free memory, and
    /// freed memory becomes available late. The figures are chosen to provoke failures, not
    /// measured.
    pub fn wsl2_rtx4060() -> Profile {
        Profile {
            name: "emulated NVIDIA GeForce RTX 4060 (WSL2)".to_owned(),
            memory_bytes: 8 * GIB - 188 * MIB,
            context_bytes: 230 * MIB,
            compute_capability: (8, 9),
            multiprocessors: 24,
            clock_khz: 2_460_000,
            memory_clock_khz: 8_501_000,
            memory_bus_bits: 128,
            l2_cache_bytes: 24 << 20,
            wsl2: true,
            vmm: false,
            concurrent_managed_access: false,
            pinned_limit: Some(512 * MIB),
            free_overstated_bytes: 256 * MIB,
            late_release_calls: 3,
            ..Profile::h200()
        }
    }

    /// Returns the UUID of the emulated device `ordinal`. The UUID is the same in every process.
    pub fn uuid(ordinal: i32) -> [u8; 16] {
        let mut bytes = *b"gpuheap-emu\0\0\0\0\0";
        bytes[12..].copy_from_slice(&ordinal.to_be_bytes());
        bytes
    }

    /// Makes contexts take no memory.
    pub fn without_context(self) -> Profile {
        self.context_bytes(0)
    }

    /// Makes each context take `bytes` bytes of device memory.
    pub fn context_bytes(mut self, bytes: u64) -> Profile {
        self.context_bytes = bytes;
        self
    }

    /// Sets the device's memory, in bytes.
    pub fn memory_bytes(mut self, bytes: u64) -> Profile {
        self.memory_bytes = bytes;
        self
    }
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Parses a number of bytes, with the unit `MiB` or `GiB` or without a unit.
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix("iB") {
        Some(rest) => match rest.strip_suffix('M') {
            Some(number) => (number, MIB),
            None => (rest.strip_suffix('G')?, GIB),
        },
        None => (text, 1),
    };
    let is_whole = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = is_whole.then(|| number.parse().ok())??;
    number.checked_mul(unit).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_names_or_bytes() {
        let device = Profile::parse;
        assert_eq!(device("t4"), Some(Profile::t4()));
        assert_eq!(device("16GiB"), Some(Profile::with_memory(16 << 30)));
        assert_eq!(device("512MiB"), Some(Profile::with_memory(512 << 20)));
        assert_eq!(device("1000000"), Some(Profile::with_memory(1_000_000)));
        for wrong in ["", "0", "-1", "+1", "12XB", "GiB", "1.5GiB", "1 GiB", "T4", "99999999999GiB"]
        {
            assert_eq!(device(wrong), None, "{wrong:?}");
        }
        let card = device(
            "name=NVIDIA L4;memory=22491MiB;context=182452224;capability=8.9;sms=58;vmm=1;pools=0",
        );
        assert_eq!(
            card,
            Some(Profile {
                name: "emulated NVIDIA L4".to_owned(),
                memory_bytes: 22_491 << 20,
                context_bytes: 174 << 20,
                compute_capability: (8, 9),
                multiprocessors: 58,
                pools: false,
                ..Profile::h200()
            })
        );
        assert_eq!(device("memory=1GiB"), Some(Profile::with_memory(1 << 30)));
        for wrong in ["name=A", "memory=", "memory=0", "memory=1GiB;", "memory=1GiB;vmm=yes"] {
            assert_eq!(device(wrong), None, "{wrong:?}");
        }
        let two = vec![Profile::t4(), Profile::with_memory(1 << 30)];
        assert_eq!(Profile::list("t4, 1GiB"), Some(two));
        assert_eq!(Profile::list("t4,"), None);
    }
}
