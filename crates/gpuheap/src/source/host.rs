//! Size of the host's memory.

use std::fs;

/// Returns the available bytes of the host's memory, and all its bytes, from Linux's
/// `/proc/meminfo`. If that cannot be read, there is no bound.
pub(super) fn host_memory() -> (u64, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = field(&text, "MemAvailable:").unwrap_or(u64::MAX);
    (available, field(&text, "MemTotal:").unwrap_or(u64::MAX))
}

/// Parses a line such as `MemTotal:       24576 kB` as bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linux_writes() {
        let text = "MemTotal:       24576 kB\nMemAvailable:    1024 kB\nHugePages_Total:  3\n";
        assert_eq!(field(text, "MemTotal:"), Some(24 << 20));
        assert_eq!(field(text, "MemAvailable:"), Some(1 << 20));
        assert_eq!(field(text, "HugePages_Total:"), None);
        assert_eq!(field(text, "SwapTotal:"), None);
    }
}
