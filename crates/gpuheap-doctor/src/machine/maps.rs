//! Parses the mappings of a process: `/proc/PID/maps`.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::{device, numbered_device};

/// Prefixes of the file names that rules look for in `/proc/PID/maps`.
const LIBRARIES: [&str; 14] = [
    "libcuda.so",
    "libnvidia-ml.so",
    "libtorch_cuda",
    "libc10_cuda",
    "libcudart",
    "xla_extension",
    "libtensorflow",
    "libcupti",
    "libsanitizer-collection",
    "libcudadebugger",
    "libcudf",
    "librmm",
    "cupy",
    "libtpu",
];

/// Size of the mapping that each context makes of `/dev/nvidiaN`, in bytes. On an H200 with driver
/// 580, a second context added one mapping of this size and no smaller mapping.
const CONTEXT_MAPPING: u64 = 2 << 20;

/// Mappings that rules look for in a process.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Maps {
    /// Names of libraries, and device files.
    pub(super) files: BTreeSet<String>,
    /// Number of contexts on each device file.
    pub(super) contexts: BTreeMap<String, usize>,
    /// Bytes of shared anonymous memory.
    pub(super) shared_anonymous: u64,
}

impl Maps {
    /// Parses `/proc/PID/maps`: lines of the form `start-end permissions offset device inode path`.
    pub(super) fn parse(text: &str) -> Maps {
        let mut maps = Maps::default();
        for line in text.lines() {
            maps.files.extend(known_file(line));
            let Some((bytes, permissions, path)) = mapping(line) else { continue };
            if permissions != "rw-s" {
                continue;
            }
            if path == "/dev/zero (deleted)" {
                maps.shared_anonymous = maps.shared_anonymous.saturating_add(bytes);
            }
            if let (Some(file), CONTEXT_MAPPING) = (numbered_device(path), bytes) {
                *maps.contexts.entry(file).or_default() += 1;
            }
        }
        maps
    }
}

/// Returns the bytes, the permissions and the path of the mapping in a line.
fn mapping(line: &str) -> Option<(u64, &str, &str)> {
    let path = &line[line.find('/')?..];
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some((number(end)?.checked_sub(number(start)?)?, fields.next()?, path))
}

/// Returns the file's name in a line of `/proc/PID/maps`; `None` if the diagnosis does not use it.
fn known_file(line: &str) -> Option<String> {
    let path = &line[line.find('/')?..];
    let name = path.rsplit('/').next()?;
    if let Some(file) = device(path) {
        return Some(file);
    }
    if path.starts_with("/dev/shm/torch_") || path.starts_with("/usr/lib/wsl/") {
        return Some(path.to_owned());
    }
    LIBRARIES.iter().any(|library| name.starts_with(library)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_count_contexts_and_shared_memory() {
        let maps = Maps::parse(
            "200600000-200800000 rw-s 00000000 00:06 1 /dev/nvidia0\n\
             300600000-300800000 rw-s 00000000 00:06 1 /host/dev/nvidia0\n\
             7f68b64b4000-7f68b64c4000 -w-s 00000000 00:06 1 /dev/nvidia0\n\
             200800000-200a00000 rw-s 00000000 00:06 1 /dev/nvidiactl\n\
             7f6482000000-7f6682000000 rw-s 00000000 00:01 1 /dev/zero (deleted)\n\
             7f6682000000-7f6482000000 rw-s 00000000 00:01 1 /dev/zero (deleted)\n\
             7f00-7f01 r-xp 0 0 0 /lib/libcuda.so.580\n\
             garbage /x\n",
        );
        assert_eq!(maps.contexts, BTreeMap::from([("/dev/nvidia0".to_owned(), 2)]));
        assert_eq!(maps.shared_anonymous, 8 << 30);
        let files = ["/dev/nvidia0", "/dev/nvidiactl", "libcuda.so.580"];
        assert_eq!(maps.files, files.map(str::to_owned).into());
    }
}
