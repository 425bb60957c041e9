//! Append-only file that is mapped, so that its content survives the process.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::{fs, path, ptr};

/// Bytes that the file grows by. A killed process leaves at most this many unused bytes. With 64
/// KiB, a program with 10,000 distinct stacks mapped the file 30 times.
const CHUNK: usize = 1 << 20;

/// Bytes that a chunk reserves so that [`MappedFile::append_last`] can write the last record.
const RESERVED: usize = 256;

/// Append-only file whose last chunk is mapped. No descriptor stays open, because some programs
/// close descriptors that they did not open.
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// Absolute path, because the program may change its working directory.
    path: PathBuf,
    /// Device and inode, to detect another file at the path.
    id: (u64, u64),
    /// Start of the mapped chunk. It has `mapped` bytes.
    chunk: *mut u8,
    mapped: usize,
    /// Offset of the chunk in the file.
    start: u64,
    /// Used bytes of the chunk.
    used: usize,
    most: u64,
    /// Bytes that the file grows by.
    growth: usize,
}

// SAFETY: the value owns the mapping, and a mapping is not bound to a thread.
unsafe impl Send for MappedFile {}

impl MappedFile {
    /// Creates a new file. If the path exists, adds `.2`, `.3` and so on before the ending, because
    /// this process may have written the file before an `exec`.
    pub(crate) fn create(path: &Path, most: u64) -> io::Result<MappedFile> {
        let path = path::absolute(path)?;
        let mut number = 1;
        let (path, file) = loop {
            let path = numbered(&path, number);
            let mut options = OpenOptions::new();
            match options.write(true).create_new(true).mode(0o644).open(&path) {
                Ok(file) => break (path, file),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < 1000 => {
                    number += 1;
                }
                Err(error) => return Err(error),
            }
        };
        let id = id_of(&file.metadata()?);
        let (chunk, start) = (ptr::null_mut(), 0);
        let growth = CHUNK;
        let mut file = MappedFile { path, id, chunk, mapped: 0, start, used: 0, most, growth };
        if let Err(error) = file.map_next(0) {
            file.remove();
            return Err(error);
        }
        Ok(file)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a record. Its first byte is stored last, so a record is whole or absent.
    pub(crate) fn append(&mut self, record: &[u8]) -> io::Result<()> {
        if self.used + record.len() + RESERVED > self.mapped {
            self.map_next(record.len() + RESERVED)?;
        }
        self.store(record);
        Ok(())
    }

    /// If the last record fits into the chunk, appends it. Truncates the file to its used part.
    pub(crate) fn append_last(mut self, record: &[u8]) {
        if self.used + record.len() <= self.mapped {
            self.store(record);
        }
        self.cut();
    }

    /// Truncates the file to its used part. A later record extends the file by a few pages.
    pub(crate) fn cut(&mut self) {
        self.growth = 4 * page_bytes();
        self.start += self.used as u64;
        self.used = 0;
        self.unmap();
        if let Ok(file) = self.reopened() {
            // If the truncation fails, the file ends with zeros and can still be read.
            let _ = file.set_len(self.start);
        }
    }

    pub(crate) fn remove(mut self) {
        self.unmap();
        if fs::metadata(&self.path).is_ok_and(|found| id_of(&found) == self.id) {
            // If the removal fails, the file is read as an empty capture.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Reopens the file. Fails if the path leads to another file.
    fn reopened(&self) -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        if id_of(&file.metadata()?) != self.id {
            return Err(io::Error::other("another file replaced the capture"));
        }
        Ok(file)
    }

    /// Returns the size of the used part of the file, in bytes.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.used as u64
    }

    /// Returns `true` if the used part has at least half of the file's maximum size.
    pub(crate) fn is_half_full(&self) -> bool {
        self.end() >= self.most.max(CHUNK as u64) / 2
    }

    /// Returns the used bytes from the file offset `from` on; `None` if some are not mapped.
    pub(crate) fn tail(&self, from: u64) -> Option<&[u8]> {
        let skipped = usize::try_from(from.checked_sub(self.start)?).ok()?;
        let length = self.used.checked_sub(skipped)?;
        if self.chunk.is_null() {
            return None;
        }
        // SAFETY: the used bytes are within the mapping, and only this value writes to it.
        Some(unsafe { std::slice::from_raw_parts(self.chunk.add(skipped), length) })
    }

    /// Replaces the end of the used part, from the file offset `from` on, by `bytes`. Does nothing
    /// if `bytes` is longer than the replaced end. If the process ends during the call, a reader
    /// sees the file end at `from`.
    pub(crate) fn replace(&mut self, from: u64, bytes: &[u8]) {
        let Some(length) = self.tail(from).map(<[u8]>::len) else { return };
        if bytes.len() > length || length == 0 {
            return;
        }
        self.used -= length;
        // SAFETY: `tail` checked that the range is within the mapping. Only this value writes to
        // the mapping.
        unsafe {
            let place = self.chunk.add(self.used);
            AtomicU8::from_ptr(place).store(0, Ordering::Release);
            fence(Ordering::SeqCst);
            ptr::write_bytes(place.add(bytes.len()), 0, length - bytes.len());
        }
        self.store(bytes);
    }

    /// Overwrites used bytes at the file offset `place`. Does nothing if some of them are not
    /// mapped.
    pub(crate) fn overwrite(&mut self, place: u64, bytes: &[u8]) {
        let length = self.tail(place).map_or(0, <[u8]>::len);
        if bytes.len() <= length {
            let skipped = self.used - length;
            // SAFETY: `tail` checked that the range is within the used bytes of the mapping.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), self.chunk.add(skipped), bytes.len());
            }
        }
    }

    /// Stores one or more records after the used bytes.
    fn store(&mut self, record: &[u8]) {
        let Some((tag, rest)) = record.split_first() else { return };
        // SAFETY: the record fits into the mapping after `used`, and the file system has allocated
        // the mapping's blocks. Only this value writes to the mapping.
        unsafe {
            let place = self.chunk.add(self.used);
            ptr::copy_nonoverlapping(rest.as_ptr(), place.add(1), rest.len());
            fence(Ordering::Release);
            AtomicU8::from_ptr(place).store(*tag, Ordering::Release);
        }
        self.used += record.len();
    }

    /// Maps the part of the file after the used bytes, with room for `bytes`.
    fn map_next(&mut self, bytes: usize) -> io::Result<()> {
        let page = page_bytes();
        let used = self.start + self.used as u64;
        let start = used / page as u64 * page as u64;
        let least = (bytes + page).next_multiple_of(page);
        let mut mapped = self.growth.max(least);
        if start + mapped as u64 > self.most.max(CHUNK as u64) {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "--max-size is reached"));
        }
        let room = usize::try_from(file_size_limit().saturating_sub(start)).unwrap_or(usize::MAX);
        if mapped > room {
            mapped = room / page * page;
            if mapped < least {
                let reason = "the process's limit of file sizes is reached (ulimit -f)";
                return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
            }
        }
        let file = self.reopened()?;
        let offset = libc::off_t::try_from(start).map_err(io::Error::other)?;
        let length = libc::off_t::try_from(mapped).map_err(io::Error::other)?;
        // Allocates the blocks now. If the disk is full, a store into a hole would end the program.
        // SAFETY: the descriptor is open.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), offset, length) } {
            0 => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
        // SAFETY: the call creates a new mapping of an open file.
        let chunk = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset,
            )
        };
        if chunk == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.unmap();
        self.chunk = chunk.cast();
        self.mapped = mapped;
        self.start = start;
        self.used = (used - start) as usize;
        Ok(())
    }

    fn unmap(&mut self) {
        if !self.chunk.is_null() {
            // SAFETY: the value owns the mapping and does not use it afterwards.
            unsafe { libc::munmap(self.chunk.cast(), self.mapped) };
            self.chunk = ptr::null_mut();
            self.mapped = 0;
        }
    }
}

fn id_of(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn page_bytes() -> usize {
    // SAFETY: the call reads a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Returns the maximum size to which the process may extend a file. The kernel ends a process that
/// exceeds it.
fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the pointer is valid for a write.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_cur
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    match (number, path.extension()) {
        (1, _) => path.into(),
        (_, Some(ending)) if ending == "gph" => path.with_extension(format!("{number}.gph")),
        _ => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{number}"));
            name.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_file_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.gph");
        let mut file = MappedFile::create(&path, u64::MAX).unwrap();
        file.append(&[1; 10]).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        let other = vec![7; 2 * CHUNK];
        fs::write(&path, &other).unwrap();
        let refused = file.append(&vec![1; CHUNK]).unwrap_err();
        assert_eq!(refused.to_string(), "another file replaced the capture");
        file.cut();
        file.remove();
        assert!(fs::read(&path).unwrap() == other);
    }

    /// The limit on file sizes applies to a whole process, so a child process sets it.
    #[test]
    fn file_without_room_is_removed() {
        const FOLDER: &str = "GPUHEAP_TEST_NO_ROOM";
        if let Some(folder) = std::env::var_os(FOLDER) {
            let path = Path::new(&folder).join("run.gph");
            MappedFile::create(&path, u64::MAX).unwrap_err();
            assert!(!path.exists());
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "ulimit -f 0; exec \"$0\" file_without_room"]);
        let shown = shell.arg(std::env::current_exe().unwrap()).env(FOLDER, folder.path()).output();
        let shown = shown.unwrap();
        assert!(String::from_utf8_lossy(&shown.stdout).contains("1 passed"), "{shown:?}");
    }

    #[test]
    fn relative_path_becomes_absolute() {
        let name = format!("target-{}.gph", std::process::id());
        let file = MappedFile::create(Path::new(&name), u64::MAX).unwrap();
        assert_eq!(file.path(), std::env::current_dir().unwrap().join(name));
        file.remove();
    }
}
