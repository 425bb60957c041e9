//! How much memory the host has.

use std::fs;

/// Bytes of the host's memory that are available, and all of them, as Linux says in
/// `/proc/meminfo`. Where that cannot be read, no bound.
pub(super) fn host_memory() -> (u64, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = field(&text, "MemAvailable:").unwrap_or(u64::MAX);
    (available, field(&text, "MemTotal:").unwrap_or(u64::MAX))
}

/// A line like `MemTotal:       24576 kB`, in bytes.
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
