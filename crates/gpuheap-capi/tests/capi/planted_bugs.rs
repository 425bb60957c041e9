//! Tests that the emulator's checks find a C program's wrong uses of a block.

use gpuheap::PoolKind;
use gpuheap::emu::{FindingKind, Schedule};
use gpuheap_driver::CUstream;

use crate::client::{Client, Memory, Status, make_stream};
use crate::support::emulated;

const BYTES: u64 = 1000;

/// Returns the kinds of the findings that the checks report for a C program.
fn found(pool: PoolKind, program: impl Fn(&Program<'_>)) -> Vec<FindingKind> {
    let mut kinds = Vec::new();
    for schedule in [Schedule::Immediate, Schedule::OnDemand, Schedule::Seeded(3)] {
        let device = emulated(1 << 30, schedule);
        let client = Client::new(&device, pool);
        let [one, two] = [(); 2].map(|()| make_stream(&device));
        program(&Program { device: &device, client, one, two });
        let findings = device.emulator().unwrap().findings().unwrap();
        for finding in &findings {
            assert!(finding.text.contains("block of 1000 bytes at"), "{pool}: {finding}");
        }
        kinds.extend(findings.iter().map(|finding| finding.kind));
    }
    kinds.dedup();
    kinds
}

struct Program<'a> {
    device: &'a gpuheap::Device,
    client: Client,
    one: CUstream,
    two: CUstream,
}

impl Program<'_> {
    fn allocate(&self) -> Memory {
        self.client.allocate(BYTES, self.one).unwrap()
    }

    fn read(&self, memory: Memory) {
        let mut host = vec![0_u8; BYTES as usize];
        let read = self.device.with_current(|driver| {
            let address = memory.address as u64;
            // SAFETY: both ranges have this length.
            unsafe { driver.cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, host.len()) }
        });
        assert!(read.unwrap().is_success());
    }
}

#[test]
fn planted_bugs_are_found() {
    // Only these pools place several blocks in one allocation of the driver, so that a write beyond
    // a block's end succeeds. With other pools, the driver refuses the write.
    for pool in [PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        let clean = found(pool, |program| {
            let memory = program.allocate();
            memory.fill(program.device, 1, program.one);
            program.device.synchronize().unwrap();
            program.read(memory);
            assert_eq!(program.client.free(memory), Status::Ok);
        });
        assert_eq!(clean, [], "{pool}");
        let freed = found(pool, |program| {
            let memory = program.allocate();
            assert_eq!(program.client.free(memory), Status::Ok);
            memory.fill(program.device, 1, program.one);
        });
        assert_eq!(freed, [FindingKind::UseAfterFree], "{pool}");
        let beyond = found(pool, |program| {
            let memory = program.allocate();
            Memory { bytes: BYTES + 1, ..memory }.fill(program.device, 1, program.one);
        });
        assert_eq!(beyond, [FindingKind::OutOfBounds], "{pool}");
        let unwritten = found(pool, |program| {
            let memory = program.allocate();
            memory.fill(program.device, 1, program.one);
            assert_eq!(program.client.free(memory), Status::Ok);
            let again = program.allocate();
            assert_eq!(again.address, memory.address);
            program.device.synchronize().unwrap();
            program.read(again);
        });
        assert_eq!(unwritten, [FindingKind::Uninitialised], "{pool}");
        let unordered = found(pool, |program| {
            let memory = program.allocate();
            memory.fill(program.device, 1, program.two);
            assert_eq!(program.client.free(memory), Status::Ok);
            program.allocate();
        });
        assert_eq!(unordered, [FindingKind::Unordered], "{pool}");
    }
}
