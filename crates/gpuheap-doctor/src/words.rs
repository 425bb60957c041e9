//! Sizes, times and lines as people read them.

/// Bytes as whole MiB, as `nvidia-smi` shows them.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{} MiB", (bytes + (1 << 19)) >> 20)
}

/// Seconds as one number with a unit: `40 s`, `12 min`, `3 h`, `9 d`.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Cuts a text to `width` characters, control characters replaced, `…` at the end if it was longer.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.chars().count() <= width {
        return clean;
    }
    let mut short: String = clean.chars().take(width.saturating_sub(1)).collect();
    short.truncate(short.trim_end().len());
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_have_one_unit() {
        assert_eq!([119, 120, 7200, 172_800].map(age), ["119 s", "2 min", "2 h", "2 d"]);
        assert_eq!(mib(1542 << 20), "1542 MiB");
    }

    #[test]
    fn texts_are_cut_with_a_mark() {
        assert_eq!(cut("python3 train.py\n", 20), "python3 train.py ");
        assert_eq!(cut("python3 train.py", 10), "python3 t…");
    }
}
