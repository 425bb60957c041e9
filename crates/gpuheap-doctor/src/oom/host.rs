//! Explains errors about host memory that NumPy, C++ and the Linux kernel report.

use super::explanation::{Explanation, explanation};
use super::rapids::add_wsl2_host;
use super::sizes::after;

/// Explains NumPy's error `Unable to allocate 12.0 GiB for an array with shape (40000, 40000) and
/// data type float64`.
pub(super) fn numpy(text: &str, on_wsl2: bool) -> Option<Explanation> {
    let at = text.find("Unable to allocate ")?;
    let text = &text[at..];
    let exact = shape_bytes(text);
    let requested = exact.or_else(|| after(text, "Unable to allocate "))?;
    let found = explanation(
        "NumPy",
        "the host has no memory left for the array; this is not memory of the GPU",
        "free -h # free memory of the host; del finished arrays",
    )
    .with_alternatives(&[
        "numpy.empty(shape, dtype=\"float32\") # half of float64's bytes",
        "numpy.lib.format.open_memmap(\"a.npy\", \"w+\", dtype, shape) # on disk",
    ])
    .confirmed(true);
    let found = add_wsl2_host(found, on_wsl2).rounded(exact.is_none());
    Some(found.with_figures(&[("requested", Some(requested))]))
}

/// Returns the bytes of an array, computed from its shape and type as NumPy prints them.
fn shape_bytes(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("shape (")?;
    let (shape, rest) = rest.split_once(')')?;
    let kind = rest.strip_prefix(" and data type ")?;
    let end = kind.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(kind.len());
    let kind = &kind[..end];
    let bytes = match kind {
        "bool" | "int8" | "uint8" => 1,
        "int16" | "uint16" | "float16" => 2,
        "int32" | "uint32" | "float32" => 4,
        "int64" | "uint64" | "float64" | "complex64" => 8,
        "complex128" => 16,
        _ => return None,
    };
    let lengths = shape.split(',').map(str::trim).filter(|length| !length.is_empty());
    lengths
        .map(|length| length.parse::<u64>().ok())
        .try_fold(bytes, |product: u64, length| product.checked_mul(length?))
}

/// Explains the Linux kernel's message `Out of memory: Killed process 4242 (python) total-vm:…kB,
/// anon-rss:…kB`. The kernel's `kB` are 1024 bytes.
pub(super) fn kernel(text: &str, on_wsl2: bool) -> Option<Explanation> {
    let text = text.find("Killed process ").map(|at| &text[at..])?;
    let kib = |name: &str| {
        let (_, rest) = text.split_once(name)?;
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        rest[end..].starts_with("kB").then(|| rest[..end].parse::<u64>().ok())??.checked_mul(1024)
    };
    let name = text.split_once('(').and_then(|(_, rest)| Some(rest.split_once(')')?.0));
    let found = explanation(
        "Linux",
        format!(
            "the host's memory ran out, and the kernel ended {}; this is not memory of the GPU",
            name.unwrap_or("a process")
        ),
        SMALLER,
    )
    .with_alternatives(&["free -h # free memory of the host, and its swap"]);
    Some(add_wsl2_host(found, on_wsl2).with_figures(&[
        ("memory of the process", kib("anon-rss:")),
        ("addresses of the process", kib("total-vm:")),
    ]))
}

const SMALLER: &str = "smaller pieces: pandas.read_csv(path, chunksize=1_000_000)";

/// Explains `std::bad_alloc` from C++ code on the host. The text does not mention CUDA.
pub(super) fn bad_alloc(text: &str, on_wsl2: bool) -> Option<Explanation> {
    text.contains("std::bad_alloc").then(|| {
        let found = explanation(
            "C++",
            "the host has no memory left for operator new; RMM would name CUDA, so this is not \
             memory of the GPU",
            "free -h # free memory of the host",
        )
        .with_alternatives(&[
            "ulimit -v # a limit of the shell; unlimited if it has none",
            "gdb -ex 'catch throw' -ex run -ex bt --args ./program # the line that requests it",
        ]);
        add_wsl2_host(found, on_wsl2).confirmed(true)
    })
}

/// Explains the shell's message "Killed" about a program that ended.
pub(super) fn killed(text: &str, line: &str, on_wsl2: bool) -> Option<Explanation> {
    let is_shells = |line: &str| {
        let line = line.trim();
        let job = line.starts_with('[') && (line.contains(" Killed") || line.contains(" killed"));
        let script = line.contains(": line ") && line.contains(" Killed");
        line == "Killed" || job || script || line.starts_with("zsh: killed")
    };
    const CODES: [&str; 4] =
        ["exit code 137", "exit status 137", "exit code: 137", "<Signals.SIGKILL: 9>"];
    let is_killed = text.lines().any(is_shells)
        || CODES.iter().any(|code| line.contains(code))
        || line.starts_with("zsh: killed");
    is_killed.then(|| {
        let found = explanation(
            "Linux",
            "the process was ended by SIGKILL. If nobody sent it, the kernel did, because the \
             host's memory ran out; this is not memory of the GPU",
            "sudo dmesg | grep -i 'killed process' # whether the kernel ended it, and its size",
        )
        .with_alternatives(&["free -h # free memory of the host, and its swap", SMALLER]);
        add_wsl2_host(found, on_wsl2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_gives_the_exact_size() {
        let text = "Unable to allocate 12.0 GiB for an array with shape (40000, 40000) and data type \
                    float64";
        assert_eq!(shape_bytes(text), Some(12_800_000_000));
        assert_eq!(shape_bytes("shape (3,) and data type complex128"), Some(48));
        assert_eq!(shape_bytes("shape (3, x) and data type int8"), None);
        assert_eq!(shape_bytes("shape (4294967296, 4294967296, 2) and data type int8"), None);
        assert_eq!(shape_bytes("shape (3,) and data type <U12"), None);
    }
}
