//! Reads the sizes of kernel parameters from the image of a module. The image is PTX, an ELF file,
//! or a fat binary with uncompressed PTX or ELF. `nvcc` leaves ELF files uncompressed by default.
//! The libraries of NVIDIA and PyTorch are compressed, so the parameters of their kernels are
//! unknown.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use gpuheap_driver::CUresult;
use rustc_hash::FxHashMap;

use crate::state::host;
use crate::{In, Outcome};

/// Sizes of each kernel's parameters in order, in bytes, keyed by kernel name.
pub(crate) type Parameters = FxHashMap<String, Arc<[u32]>>;

/// First four bytes of a fat binary, and of the structure through which compiled programs refer to
/// a fat binary.
const FAT_BINARY: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
const WRAPPER: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();
const ELF: [u8; 4] = *b"\x7fELF";
/// Machine number of CUDA devices in an ELF header.
const CUDA: u16 = 190;
/// Size of an ELF file's header, and of an entry in its section table, in bytes.
const ELF_HEADER: usize = 64;
const SECTION: usize = 64;
/// Maximum size of an ELF file that is read, in bytes. The largest ELF file of PyTorch has 60 MiB.
const MOST_ELF: u64 = 1 << 30;
/// Kinds of entries in a fat binary, and the flags of a compressed entry.
const KIND_PTX: u16 = 1;
const KIND_ELF: u16 = 2;
const COMPRESSED: u64 = 0x2000 | 0x8000;
/// Format, in a section `.nv.info.NAME`, of an attribute that states its size.
const SIZED: u8 = 4;
/// Attribute that describes a parameter of a kernel.
const PARAMETER: u8 = 0x17;

/// Image of a module.
pub(crate) enum Image {
    Ptx(String),
    Elf(Vec<u8>),
    /// An image whose parameters are unknown.
    Unknown,
}

impl Image {
    /// Reads the image at an address in the program's memory.
    pub(crate) fn at(image: In<c_void>) -> Outcome<Image> {
        if image.address() == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let source = Source::Memory(image.address());
        if source.begins_with(WRAPPER) {
            return Ok(Source::Memory(source.number::<8>(8)).fat_binary());
        }
        match source.binary() {
            Some(binary) => Ok(binary),
            // SAFETY: an image that is no binary is PTX, a C string.
            None => Ok(Image::Ptx(unsafe { image.cast::<c_char>() }.text()?)),
        }
    }

    /// Reads the image in a file.
    pub(crate) fn from_file(file: In<c_char>) -> Outcome<Image> {
        let bytes = std::fs::read(file.text()?).map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
        let source = Source::File(&bytes);
        let text = || Image::Ptx(String::from_utf8_lossy(&bytes).into_owned());
        Ok(source.binary().unwrap_or_else(text))
    }

    /// Returns the sizes of the kernels' parameters.
    pub(crate) fn parameters(&self) -> Parameters {
        match self {
            Image::Ptx(text) => parse_ptx(text),
            Image::Elf(file) => parse_elf(file).unwrap_or_default(),
            Image::Unknown => Parameters::default(),
        }
    }
}

/// Location of an image.
enum Source<'i> {
    /// Address of an image in memory. The image itself states its size.
    Memory(u64),
    File(&'i [u8]),
}

impl Source<'_> {
    /// Reads bytes. Bytes past the end of a file read as zeros.
    fn read(&self, at: u64, bytes: &mut [u8]) {
        match self {
            Source::Memory(address) => host::read(address + at, bytes),
            Source::File(file) => {
                let rest = usize::try_from(at).ok().and_then(|at| file.get(at..)).unwrap_or(&[]);
                let length = rest.len().min(bytes.len());
                bytes[..length].copy_from_slice(&rest[..length]);
            }
        }
    }

    /// Returns whether the image begins with `magic`. Stops at the first byte that differs, because
    /// a text may be shorter than `magic`.
    fn begins_with(&self, magic: [u8; 4]) -> bool {
        (0..).zip(magic).all(|(at, byte)| self.number::<1>(at) == u64::from(byte))
    }

    /// Reads an ELF file or a fat binary; `None` if the image is neither.
    fn binary(&self) -> Option<Image> {
        if self.begins_with(ELF) {
            return Some(self.elf(0));
        }
        self.begins_with(FAT_BINARY).then(|| self.fat_binary())
    }

    fn bytes(&self, at: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.read(at, &mut bytes);
        bytes
    }

    fn number<const BYTES: usize>(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes[..BYTES]);
        u64::from_le_bytes(bytes)
    }

    /// Reads an ELF file up to the end of its last section.
    fn elf(&self, at: u64) -> Image {
        let header = self.bytes(at, ELF_HEADER as u64);
        let end = Elf(&header).sections_at().map_or(0, |(table, count)| {
            let sections = self.bytes(at + table, (count * SECTION) as u64);
            let ends = (0..count).filter_map(|index| {
                let (start, length) = Elf(&sections).extent(index * SECTION)?;
                start.checked_add(length)
            });
            ends.max().unwrap_or(0).max(table + sections.len() as u64)
        });
        match end {
            1..=MOST_ELF => Image::Elf(self.bytes(at, end)),
            _ => Image::Unknown,
        }
    }

    /// Reads the first uncompressed entry of a fat binary. Entries for other architectures have the
    /// same parameters.
    fn fat_binary(&self) -> Image {
        let header = self.number::<2>(6);
        let end = header + self.number::<8>(8);
        let mut at = header;
        while at < end {
            let (kind, flags) = (self.number::<2>(at) as u16, self.number::<8>(at + 40));
            let content = at + self.number::<4>(at + 4);
            let bytes = self.number::<8>(at + 8);
            match kind {
                KIND_ELF if flags & COMPRESSED == 0 => return self.elf(content),
                KIND_PTX if flags & COMPRESSED == 0 && bytes <= MOST_ELF => {
                    let text = self.bytes(content, bytes);
                    return Image::Ptx(String::from_utf8_lossy(&text).into_owned());
                }
                _ => {}
            }
            let Some(next) = content.checked_add(bytes).filter(|&next| next > at) else { break };
            at = next;
        }
        Image::Unknown
    }
}

/// Returns the parameters of each entry of a PTX text:
/// `.entry add(.param .u64 a, .param .align 8 .b8 b[24])`.
fn parse_ptx(text: &str) -> Parameters {
    let entries = text.split(".entry ").skip(1).filter_map(|entry| {
        let (name, rest) = entry.split_once('(')?;
        let (list, _) = rest.split_once(')')?;
        let sizes: Option<Arc<[u32]>> = list.split(".param").skip(1).map(parse_ptx_size).collect();
        Some((name.trim().to_owned(), sizes?))
    });
    entries.collect()
}

/// Returns the size of a PTX parameter, read from the text after `.param`.
fn parse_ptx_size(text: &str) -> Option<u32> {
    let type_of = |word: &str| {
        let kind = word.strip_prefix(['.'])?.strip_prefix(['b', 's', 'u', 'f'])?;
        kind.parse::<u32>().ok().filter(|bits| bits.is_power_of_two()).map(|bits| bits / 8)
    };
    let element = text.split_whitespace().find_map(type_of)?;
    match text.split_once('[') {
        Some((_, count)) => element.checked_mul(count.split_once(']')?.0.trim().parse().ok()?),
        None => Some(element),
    }
}

/// Returns the parameters of the kernels in an ELF file, read from the sections `.nv.info.NAME`.
/// Returns `None` if the file is damaged.
fn parse_elf(file: &[u8]) -> Option<Parameters> {
    let elf = Elf(file);
    let (table, count) = elf.sections_at()?;
    let section = |index: usize| table as usize + index * SECTION;
    let names = elf.extent(section(elf.number::<2>(62)? as usize))?.0;
    let mut found = Parameters::default();
    for index in 0..count {
        let name = names.checked_add(elf.number::<4>(section(index))?)?;
        let name = file.get(name as usize..)?.split(|byte| *byte == 0).next()?;
        let Some(kernel) = name.strip_prefix(b".nv.info.") else { continue };
        let (start, length) = elf.extent(section(index))?;
        let end = start.checked_add(length)?;
        if let Some(sizes) = parse_attributes(file.get(start as usize..end as usize)?) {
            found.insert(String::from_utf8_lossy(kernel).into_owned(), sizes);
        }
    }
    Some(found)
}

/// Returns the sizes of the parameters that a kernel's attributes describe; `None` if a parameter
/// is missing.
fn parse_attributes(attributes: &[u8]) -> Option<Arc<[u32]>> {
    let elf = Elf(attributes);
    let mut sizes = Vec::<Option<u32>>::new();
    let mut at = 0;
    while at < attributes.len() {
        let [format, attribute] = (elf.number::<2>(at)? as u16).to_le_bytes();
        if (format, attribute) == (SIZED, PARAMETER) {
            let index = elf.number::<2>(at + 8)? as usize;
            if sizes.len() <= index {
                sizes.resize(index + 1, None);
            }
            // The upper 14 bits of the attribute's last word have the size.
            sizes[index] = Some(elf.number::<4>(at + 12)? as u32 >> 18);
        }
        at += 4 + if format == SIZED { elf.number::<2>(at + 2)? as usize } else { 0 };
    }
    sizes.into_iter().collect()
}

/// Reader of numbers in an ELF file or in a part of an ELF file.
struct Elf<'f>(&'f [u8]);

impl Elf<'_> {
    fn number<const BYTES: usize>(&self, at: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        bytes[..BYTES].copy_from_slice(self.0.get(at..)?.get(..BYTES)?);
        Some(u64::from_le_bytes(bytes))
    }

    /// Returns the offset and the length of the section table, if the file is for CUDA.
    fn sections_at(&self) -> Option<(u64, usize)> {
        let is_cuda = self.number::<2>(18)? as u16 == CUDA;
        let is_known = self.number::<2>(58)? as usize == SECTION;
        let (table, count) = (self.number::<8>(40)?, self.number::<2>(60)? as usize);
        (is_cuda && is_known && table < MOST_ELF).then_some((table, count))
    }

    /// Returns the offset and the size of the section whose table entry is at `entry`.
    fn extent(&self, entry: usize) -> Option<(u64, u64)> {
        /// Type of a section that has no bytes in the file.
        const NO_BITS: u64 = 8;
        let bytes = self.number::<8>(entry + 32)?;
        let has_bytes = self.number::<4>(entry + 4)? != NO_BITS;
        Some((self.number::<8>(entry + 24)?, if has_bytes { bytes } else { 0 }))
    }
}
