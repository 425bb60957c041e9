//! Builds a shared object that has a name, a version, a needed library, and no symbol.

/// Alignment of the segment: the largest page size of the machines that run CUDA.
const PAGE: u64 = 0x1_0000;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// Number of program headers: the loaded segment, the dynamic section in that segment, and the
/// stack's flags.
const SEGMENTS: usize = 3;
const DYNAMIC_ENTRY: usize = 16;
const SYMBOL: usize = 24;

/// Returns the bytes of a shared object named `soname` that defines the version `version` and needs
/// the library `needed`.
pub(crate) fn bytes(soname: &str, version: &str, needed: &str) -> Vec<u8> {
    let texts = [soname, version, needed].map(str::as_bytes);
    let strings = [b"\0", texts[0], b"\0", texts[1], b"\0", texts[2], b"\0"].concat();
    let needed_at = 1 + soname.len() + 1 + version.len() + 1;
    let versions = version_definitions(soname, version);

    let mut at = HEADER + SEGMENTS * PROGRAM_HEADER;
    let mut place = |bytes: usize| {
        let here = at;
        at += bytes.next_multiple_of(8);
        here as u64
    };
    let symbols_at = place(SYMBOL);
    let hash_at = place(16);
    let symbol_versions_at = place(2);
    let versions_at = place(versions.len());
    let strings_at = place(strings.len());
    let dynamic: [(u64, u64); 11] = [
        (tag::NEEDED, needed_at as u64),
        (tag::SONAME, 1),
        (tag::HASH, hash_at),
        (tag::STRING_TABLE, strings_at),
        (tag::STRING_SIZE, strings.len() as u64),
        (tag::SYMBOL_TABLE, symbols_at),
        (tag::SYMBOL_SIZE, SYMBOL as u64),
        (tag::VERSION_SYMBOLS, symbol_versions_at),
        (tag::VERSION_DEFINITIONS, versions_at),
        (tag::VERSION_DEFINITION_COUNT, 2),
        (0, 0),
    ];
    let dynamic_bytes = dynamic.len() * DYNAMIC_ENTRY;
    let dynamic_at = place(dynamic_bytes);
    let end = dynamic_at + dynamic_bytes as u64;

    let mut file = Writer::default();
    file.header();
    // The segment is writable, because the loader writes addresses into the dynamic section.
    file.program_header(SegmentKind::Load, 0, end, PAGE);
    file.program_header(SegmentKind::Dynamic, dynamic_at, dynamic_bytes as u64, 8);
    // Without this header, the loader makes stacks executable.
    file.program_header(SegmentKind::Stack, 0, 0, 16);
    // The null symbol, with which every symbol table begins.
    file.pad_to(symbols_at + SYMBOL as u64);
    // A hash table with one bucket. The bucket is empty, because the file defines no symbol after
    // the null symbol.
    file.pad_to(hash_at);
    file.words(&[1, 1, 0, 0]);
    file.pad_to(versions_at);
    file.0.extend(versions);
    file.pad_to(strings_at);
    file.0.extend(strings);
    file.pad_to(dynamic_at);
    for (tag, value) in dynamic {
        file.long(tag);
        file.long(value);
    }
    file.0
}

/// Tags of entries in the dynamic section.
mod tag {
    pub(super) const NEEDED: u64 = 1;
    pub(super) const HASH: u64 = 4;
    pub(super) const STRING_TABLE: u64 = 5;
    pub(super) const SYMBOL_TABLE: u64 = 6;
    pub(super) const STRING_SIZE: u64 = 10;
    pub(super) const SYMBOL_SIZE: u64 = 11;
    pub(super) const SONAME: u64 = 14;
    pub(super) const VERSION_SYMBOLS: u64 = 0x6fff_fff0;
    pub(super) const VERSION_DEFINITIONS: u64 = 0x6fff_fffc;
    pub(super) const VERSION_DEFINITION_COUNT: u64 = 0x6fff_fffd;
}

/// Returns two version definitions. Number 1 is the file's own name, marked as the base. Number 2
/// is `version`.
fn version_definitions(soname: &str, version: &str) -> Vec<u8> {
    const DEFINITION: u32 = 20;
    const NAME: u32 = 8;
    const IS_BASE: u16 = 1;
    let mut made = Writer::default();
    let version_at = 1 + soname.len() as u32 + 1;
    for (name, name_at, flags, number, next) in
        [(soname, 1, IS_BASE, 1, DEFINITION + NAME), (version, version_at, 0, 2, 0)]
    {
        made.halves(&[1, flags, number, 1]);
        made.words(&[hash(name), DEFINITION, next]);
        // Offset of the name in the string table, and 0 for the end of the list of names.
        made.words(&[name_at, 0]);
    }
    made.0
}

/// Returns the hash of a name, as the System V ABI defines it.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0_u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

#[derive(Clone, Copy)]
enum SegmentKind {
    Load = 1,
    Dynamic = 2,
    Stack = 0x6474_e551,
}

/// Writer of a file's bytes, in the machine's byte order.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn header(&mut self) {
        const SHARED_OBJECT: u16 = 3;
        let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        let order = if cfg!(target_endian = "big") { 2 } else { 1 };
        self.0.extend([0x7f, b'E', b'L', b'F', 2, order, 1, 0]);
        self.pad_to(16);
        self.halves(&[SHARED_OBJECT, machine]);
        self.words(&[1]);
        // No entry point, program headers right after this header, and no section headers.
        for value in [0, HEADER as u64, 0] {
            self.long(value);
        }
        self.words(&[0]);
        self.halves(&[HEADER as u16, PROGRAM_HEADER as u16, SEGMENTS as u16, 64, 0, 0]);
    }

    fn program_header(&mut self, kind: SegmentKind, at: u64, bytes: u64, alignment: u64) {
        const READ_WRITE: u32 = 6;
        self.words(&[kind as u32, READ_WRITE]);
        for value in [at, at, at, bytes, bytes, alignment] {
            self.long(value);
        }
    }

    fn pad_to(&mut self, at: u64) {
        self.0.resize(at as usize, 0);
    }

    fn halves(&mut self, values: &[u16]) {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
    }

    fn words(&mut self, values: &[u32]) {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
    }

    fn long(&mut self, value: u64) {
        self.0.extend(value.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_matches_system_v_abi() {
        // A known hash: linkers' documentation shows it for this version of glibc.
        assert_eq!(hash("GLIBC_2.2.5"), 0x0969_1a75);
        assert_eq!(hash(""), 0);
    }

    #[test]
    fn shell_file_ends_with_its_segment() {
        for name in ["libcudart.so.13", "a", "libnvshmem_host.so.3"] {
            let file = bytes(name, "VERSION", "/folder/libstand_in.so");
            assert!(file.len() < 1024, "{name}: {}", file.len());
            let in_segment = u64::from_ne_bytes(file[96..104].try_into().unwrap());
            assert_eq!(in_segment, file.len() as u64, "{name}");
        }
    }
}
