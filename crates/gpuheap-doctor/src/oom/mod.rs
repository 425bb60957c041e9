//! Explains an out-of-memory error: the sizes in its text, one cause, and remedies.

mod driver;
mod explanation;
mod gpuheap;
mod host;
mod julia;
mod python;
mod rapids;
mod sizes;

pub use self::explanation::Explanation;

/// Finds an out-of-memory error in a text and explains the error. Returns `None` if the text
/// contains no known error. Lines may be wrapped anywhere between two words.
///
/// `on_wsl2` is `true` for an error of a program under WSL2. If it is `None`, signs of WSL2 in the
/// text decide: a Windows drive, or the name of WSL2's kernel.
pub fn explain_error(text: &str, on_wsl2: Option<bool>) -> Option<Explanation> {
    let sign = wsl2_sign(text);
    let is_wsl2 = on_wsl2.unwrap_or(sign.is_some());
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.as_str();
    // Specific readers are first. Most texts end with the driver's own words, and `bare` would read
    // these words.
    let readers: [&dyn Fn() -> Option<Explanation>; 18] = [
        &|| gpuheap::figures(line),
        // gpuheap's own error is one line, and other text may follow.
        &|| gpuheap::error(text, is_wsl2).or_else(|| gpuheap::error(line, is_wsl2)),
        &|| driver::not_ready(line, is_wsl2),
        &|| driver::invalid_device(line, is_wsl2),
        &|| python::torch(line, is_wsl2),
        &|| rapids::rmm(line, is_wsl2),
        &|| python::cupy(line, is_wsl2),
        &|| python::jax(line).map(|found| driver::add_windows(found, is_wsl2)),
        &|| julia::julia(line).map(|found| driver::add_windows(found, is_wsl2)),
        &|| python::pycuda(line, is_wsl2),
        &|| python::numba(line).map(|found| driver::add_windows(found, is_wsl2)),
        &|| driver::cudarc(line).map(|found| driver::add_windows(found, is_wsl2)),
        &|| driver::bare(line, is_wsl2),
        &|| rapids::dask(line, is_wsl2),
        &|| host::numpy(line, is_wsl2),
        &|| host::kernel(line, is_wsl2),
        &|| host::bad_alloc(line, is_wsl2),
        &|| host::killed(text, line, is_wsl2),
    ];
    let found = readers.iter().find_map(|read| read())?;
    // Only explanations that name the chapter on WSL2 would be different without WSL2.
    let depends_on_wsl2 =
        found.guide == Some(explanation::WSL2_CHAPTER) && found.program != gpuheap::PROGRAM;
    Some(match sign.filter(|_| depends_on_wsl2 && on_wsl2.is_none()) {
        Some(sign) => found.with_note(format!(
            "read as an error under WSL2, because the text has \"{sign}\"; --profile h200 reads it \
             as one of Linux"
        )),
        None => found,
    })
}

/// Returns the words that show that a text was written under WSL2.
fn wsl2_sign(text: &str) -> Option<&str> {
    // Words of texts that were written under WSL2. PyTorch prints the last for a size that Windows
    // does not report.
    const SIGNS: [&str; 7] = [
        "microsoft-standard",
        "/usr/lib/wsl/",
        "/dev/dxg",
        "dxgk",
        "wsl.localhost",
        "WSL2",
        "17179869184.00 GiB",
    ];
    SIGNS.iter().find_map(|sign| text.contains(sign).then_some(*sign)).or_else(|| drive(text))
}

/// Returns a Windows drive in a text: `/mnt/c/`.
fn drive(text: &str) -> Option<&str> {
    text.match_indices("/mnt/").find_map(|(at, _)| {
        let drive = text.get(at..at + "/mnt/c/".len())?;
        let [.., letter, b'/'] = drive.as_bytes() else { return None };
        letter.is_ascii_lowercase().then_some(drive)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_wsl2_are_found() {
        for (text, sign) in [
            ("File \"/mnt/d/ann/run.py\", line 3", Some("/mnt/d/")),
            ("Linux pc 6.6.87.2-microsoft-standard-WSL2 #1", Some("microsoft-standard")),
            ("misc dxg: dxgk: dxgkio_make_resident", Some("dxgk")),
            ("/mnt/data/run.py", None),
            ("/mnt/", None),
            ("é/mnt/é/", None),
        ] {
            assert_eq!(wsl2_sign(text), sign, "{text}");
        }
    }
}
