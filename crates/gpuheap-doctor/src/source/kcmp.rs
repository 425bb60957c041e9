//! Compares descriptors with `kcmp`. This call is the only one of this crate that needs `unsafe`.

use crate::facts::{Skipped, Why};

/// `KCMP_FILE` of `linux/kcmp.h`. The crate libc lacks it.
const KCMP_FILE: libc::c_int = 0;

/// Returns `true` if two descriptors, each given by pid and number, share an open file.
#[allow(unsafe_code)]
pub(super) fn is_same_file(one: (u32, u32), other: (u32, u32)) -> Result<bool, Skipped> {
    // SAFETY: kcmp takes five integers and writes to no memory of this process.
    let order = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            one.0 as libc::c_long,
            other.0 as libc::c_long,
            libc::c_long::from(KCMP_FILE),
            libc::c_long::from(one.1),
            libc::c_long::from(other.1),
        )
    };
    match order {
        0 => Ok(true),
        1.. => Ok(false),
        _ => {
            let error = std::io::Error::last_os_error();
            let call = format!("kcmp of pid {} and pid {}", one.0, other.0);
            Err(match error.raw_os_error() {
                Some(libc::ENOSYS) => Skipped::new(Why::Missing, format!("{call}: {error}")),
                Some(libc::EPERM) => Skipped::new(Why::Denied, format!("{call}: {error}")),
                _ => Skipped::io(&call, &error),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn copied_descriptor_is_same_file() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let again = std::fs::File::open("/dev/null").unwrap();
        let copy = file.try_clone().unwrap();
        let me = std::process::id();
        let number = |file: &std::fs::File| (me, file.as_raw_fd() as u32);
        match is_same_file(number(&file), number(&copy)) {
            Ok(is_same) => assert!(is_same),
            // The kernel lacks kcmp, or a sandbox refuses it.
            Err(skipped) => return assert_ne!(skipped.why, Why::TimedOut),
        }
        assert_eq!(is_same_file(number(&file), number(&again)), Ok(false));
    }
}
