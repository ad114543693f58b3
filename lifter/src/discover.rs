//! Finds the code of a program and divides it into functions and blocks.
//!
//! Two passes over the text. The first follows control from everything that is known to be code
//! (entry, functions, pointers), then from what probably is (address-taken code, tables, gaps) and
//! marks instructions and block starts, a byte of marks for each byte of text. The second decodes
//! again from each block start. To find too much costs size only, since a translation is a function
//! of the bytes; to find too little costs time when the program runs.

use crate::cut::{cut_block, Builder};
use crate::flow::Flow;
use crate::image::Image;
use crate::jump_table::{targets, Dispatch, History, Kind};
use crate::program::Program;
use crate::text::{Text, COVERED, FUNCTION, INDIRECT, INSN, LEADER};
use alloc::{collections::BTreeSet, vec::Vec};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};

/// Instructions that are tried before bytes count as code although nothing proves it.
const TRIAL: u32 = 24;

/// Finds functions and blocks; `progress` hears of bytes done and bytes in all.
pub fn discover(image: &Image, progress: &mut dyn FnMut(u64, u64)) -> Program {
    let mut search = Search::new(image, progress);
    search.add_declared();
    search.drain();
    if image.fixed {
        search.add_data_words();
    }
    search.settle();
    search.sweep_gaps();
    search.settle();
    search.into_program()
}

/// A data address that code takes: perhaps a jump table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    table: u64,
    /// The instruction that takes the address.
    from: u64,
}

struct Search<'a, 'p> {
    image: &'a Image<'a>,
    text: Text<'a>,
    /// Start and end of declared functions, ascending by start.
    declared: Vec<(u64, u64)>,
    /// Known code that has not been followed yet.
    work: Vec<u64>,
    /// Addresses that are code if the bytes agree.
    perhaps: Vec<u64>,
    candidates: Vec<Candidate>,
    /// Jumps through tables that have not been read yet.
    dispatches: Vec<(u64, Dispatch)>,
    /// Tables that have been read.
    tables: BTreeSet<u64>,
    /// Instructions that use them.
    table_users: Vec<u64>,
    jump_tables: usize,
    unresolved: usize,
    history: History,
    covered: u64,
    padding: u64,
    reported: u64,
    progress: &'p mut dyn FnMut(u64, u64),
}

impl<'a, 'p> Search<'a, 'p> {
    fn new(image: &'a Image<'a>, progress: &'p mut dyn FnMut(u64, u64)) -> Self {
        let text = Text::new(image);
        let mut declared: Vec<(u64, u64)> = image
            .functions
            .iter()
            .filter(|(start, _)| text.contains(*start))
            .map(|&(start, size)| (start, start.saturating_add(size)))
            .collect();
        declared.sort_unstable_by_key(|&(start, end)| (start, u64::MAX - end));
        declared.dedup_by_key(|d| d.0);
        Search {
            image,
            text,
            declared,
            work: Vec::new(),
            perhaps: Vec::new(),
            candidates: Vec::new(),
            dispatches: Vec::new(),
            tables: BTreeSet::new(),
            table_users: Vec::new(),
            jump_tables: 0,
            unresolved: 0,
            history: History::default(),
            covered: 0,
            padding: 0,
            reported: 0,
            progress,
        }
    }

    /// Marks a block start and queues what has not been followed.
    fn add(&mut self, address: u64, marks: u8) {
        let Some((region, offset)) = self.text.find(address) else { return };
        let slot = &mut self.text.regions[region].marks[offset];
        let queued = *slot & (LEADER | INSN) != 0;
        *slot |= LEADER | marks;
        if !queued {
            self.work.push(address);
        }
    }

    /// Marks code that something refers to: a function, unless a declared one contains it.
    fn add_entry(&mut self, address: u64) {
        let inside = self.declared_at(address).is_some_and(|(start, _)| start != address);
        self.add(address, if inside { INDIRECT } else { INDIRECT | FUNCTION });
    }

    fn add_declared(&mut self) {
        for i in 0..self.declared.len() {
            self.add(self.declared[i].0, INDIRECT | FUNCTION);
        }
        self.add_entry(self.image.entry);
        for pointer in &self.image.code_pointers {
            self.add_entry(*pointer);
        }
    }

    fn add_data_words(&mut self) {
        for segment in self.image.segments.iter().filter(|s| !s.executable) {
            let skip = (segment.address.wrapping_neg() & 7) as usize;
            for word in targets(Kind::Absolute, 0, segment.bytes.get(skip..).unwrap_or_default()) {
                if self.text.contains(word) {
                    self.perhaps.push(word);
                }
            }
        }
    }

    /// The declared function that contains an address.
    fn declared_at(&self, address: u64) -> Option<(u64, u64)> {
        let i = self.declared.partition_point(|d| d.0 <= address).checked_sub(1)?;
        Some(self.declared[i]).filter(|d| address < d.1)
    }

    /// The declared function around an address, or the space between two.
    fn surroundings(&self, address: u64) -> (u64, u64) {
        let i = self.declared.partition_point(|d| d.0 <= address);
        let next = self.declared.get(i).map_or(u64::MAX, |d| d.0);
        match i.checked_sub(1).map(|i| self.declared[i]) {
            Some((start, end)) if address < end => (start, end),
            Some((start, end)) => (end.max(start), next),
            None => (0, next),
        }
    }

    /// Follows known code, then probable code and tables, until there is nothing new.
    fn settle(&mut self) {
        loop {
            self.drain();
            if self.try_perhaps() || self.read_dispatches() || self.read_candidates() {
                continue;
            }
            return;
        }
    }

    fn drain(&mut self) {
        while let Some(address) = self.work.pop() {
            self.follow(address);
        }
    }

    /// Decodes from `start` until control leaves or reaches what was decoded before.
    fn follow(&mut self, start: u64) {
        let Some((region, mut at)) = self.text.find(start) else { return };
        let bytes = self.text.regions[region].bytes;
        let mut decoder = Decoder::with_ip(64, &bytes[at..], start, DecoderOptions::NONE);
        let mut insn = Instruction::default();
        self.history.clear();
        while at < bytes.len() && self.text.regions[region].marks[at] & INSN == 0 {
            decoder.decode_out(&mut insn);
            if insn.is_invalid() {
                return;
            }
            let marks = &mut self.text.regions[region].marks[at..at + insn.len()];
            marks[0] |= INSN;
            for mark in marks {
                self.covered += u64::from(*mark & COVERED == 0);
                *mark |= COVERED;
            }
            at += insn.len();
            self.history.push(&insn);
            let next = insn.next_ip();
            match Flow::of(&insn) {
                Flow::Next => self.note_references(&insn),
                Flow::Jump(target) => return self.add(target.0, 0),
                Flow::Branch(target) | Flow::Transaction(target) => {
                    self.add(target.0, 0);
                    self.mark(next, LEADER);
                }
                Flow::Call(target) => {
                    self.add_entry(target.0);
                    if !self.resumes_after(&insn) {
                        return;
                    }
                }
                Flow::IndirectCall if !self.resumes_after(&insn) => return,
                Flow::IndirectCall => {}
                Flow::IndirectJump => {
                    match self.history.dispatch() {
                        Some(dispatch) => self.dispatches.push((insn.ip(), dispatch)),
                        None => self.unresolved += 1,
                    }
                    return;
                }
                flow if flow == Flow::Syscall || flow.resumes() => {
                    self.mark(next, LEADER | INDIRECT);
                }
                _ => return,
            }
        }
        self.report();
    }

    /// Marks without queueing: the run that is being followed goes there itself, unless its region
    /// ends first.
    fn mark(&mut self, address: u64, marks: u8) {
        match self.text.find(address) {
            Some((_, 0)) => self.add(address, marks),
            Some((region, offset)) => self.text.regions[region].marks[offset] |= marks,
            None => {}
        }
    }

    /// Marks the return site of a call; false if the call is the last instruction of a declared
    /// function, which then does not return.
    fn resumes_after(&mut self, call: &Instruction) -> bool {
        let next = call.next_ip();
        if self.declared_at(call.ip()).is_some_and(|(_, end)| end == next) {
            return false;
        }
        self.mark(next, LEADER | INDIRECT);
        true
    }

    /// Notes the code and data addresses that an instruction takes.
    fn note_references(&mut self, insn: &Instruction) {
        let value = match insn.code() {
            Code::Lea_r64_m if insn.is_ip_rel_memory_operand() => insn.ip_rel_memory_address(),
            Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 | Code::Mov_rm32_imm32
                if self.image.fixed =>
            {
                u64::from(insn.immediate32())
            }
            Code::Pushq_imm32 if self.image.fixed => insn.immediate(0),
            Code::Mov_r64_imm64 if self.image.fixed => insn.immediate64(),
            _ => return,
        };
        if self.text.contains(value) {
            self.perhaps.push(value);
        } else if insn.mnemonic() == Mnemonic::Lea && value % 4 == 0 {
            self.candidates.push(Candidate { table: value, from: insn.ip() });
        }
    }

    fn try_perhaps(&mut self) -> bool {
        let perhaps = core::mem::take(&mut self.perhaps);
        for &address in &perhaps {
            let marks = self.text.marks(address).unwrap_or(0);
            let known = marks & INSN != 0;
            if known || (marks & COVERED == 0 && self.is_code(address)) {
                self.add_entry(address);
                self.drain();
            }
        }
        !perhaps.is_empty()
    }

    /// Whether the bytes at an address decode to code that user programs may contain.
    fn is_code(&self, address: u64) -> bool {
        let Some((region, at)) = self.text.find(address) else { return false };
        let region = &self.text.regions[region];
        let mut decoder = Decoder::with_ip(64, &region.bytes[at..], address, DecoderOptions::NONE);
        let mut insn = Instruction::default();
        for n in 0..TRIAL {
            let at = at + decoder.position();
            if at >= region.bytes.len() {
                return false;
            }
            if region.marks[at] & INSN != 0 {
                return n != 0;
            }
            decoder.decode_out(&mut insn);
            if insn.is_invalid() {
                return false;
            }
            let flow = Flow::of(&insn);
            if let Some(target) = flow.target() {
                if !self.text.contains(target.0) || self.text.splits_instruction(target.0) {
                    return false;
                }
            }
            match flow {
                Flow::Next | Flow::Branch(_) | Flow::Transaction(_) => {}
                Flow::Call(_) | Flow::IndirectCall | Flow::Syscall => {}
                _ => return !flow.resumes(),
            }
        }
        true
    }

    /// Reads the tables of recognised jumps.
    fn read_dispatches(&mut self) -> bool {
        let bounds = self.table_bounds();
        let mut waiting = Vec::new();
        let dispatches = core::mem::take(&mut self.dispatches);
        let mut found = false;
        for (jump, dispatch) in dispatches {
            match dispatch.table {
                Some(table) => {
                    if self.read_table(jump, table, dispatch, &bounds, 1) {
                        self.jump_tables += 1;
                        found = true;
                    } else {
                        self.unresolved += 1;
                    }
                }
                None => waiting.push((jump, dispatch)),
            }
        }
        self.dispatches = waiting;
        found
    }

    /// Reads as tables the data that functions take the address of, where the content says so.
    fn read_candidates(&mut self) -> bool {
        let bounds = self.table_bounds();
        let candidates = core::mem::take(&mut self.candidates);
        let mut found = false;
        for candidate in &candidates {
            let Candidate { table, from } = *candidate;
            if !self.tables.contains(&table) {
                let dispatch = Dispatch { kind: Kind::Relative, table: Some(table), entries: None };
                found |= self.read_table(from, table, dispatch, &bounds, 2);
            }
        }
        self.candidates = candidates;
        found
    }

    /// Where a table whose size is unknown must end: at the next address that code takes.
    fn table_bounds(&mut self) -> Vec<u64> {
        self.candidates.sort_unstable();
        self.candidates.dedup_by_key(|c| c.table);
        self.candidates.iter().map(|c| c.table).collect()
    }

    /// Adds the targets of one table; false if it has fewer than `least`.
    fn read_table(
        &mut self,
        from: u64,
        table: u64,
        dispatch: Dispatch,
        bounds: &[u64],
        least: usize,
    ) -> bool {
        let image = self.image;
        let Some(bytes) = image.bytes_at(table) else { return false };
        let next = bounds.get(bounds.partition_point(|b| *b <= table)).copied();
        let limit = match dispatch.entries {
            Some(n) => n as usize,
            None => next.map_or(usize::MAX, |n| (n - table) as usize / 4),
        };
        let around = self.surroundings(from);
        let fits = |this: &Self, target: u64| {
            let Some(marks) = this.text.marks(target) else { return false };
            dispatch.entries.is_some()
                || dispatch.kind == Kind::Absolute
                || ((around.0..around.1).contains(&target) && marks & (COVERED | INSN) != COVERED)
                || marks & INSN != 0
        };
        let count = targets(dispatch.kind, table, bytes)
            .take(limit)
            .take_while(|&target| fits(self, target))
            .count();
        let first_is_near = targets(dispatch.kind, table, bytes)
            .take(count)
            .any(|target| (around.0..around.1).contains(&target));
        if count < least || (least > 1 && !first_is_near) {
            return false;
        }
        for target in targets(dispatch.kind, table, bytes).take(count) {
            self.add(target, INDIRECT);
        }
        self.tables.insert(table);
        self.table_users.push(from);
        true
    }

    /// Takes what is left between known code for functions, where it decodes.
    fn sweep_gaps(&mut self) {
        for region in 0..self.text.regions.len() {
            let (start, bytes) = (self.text.regions[region].start, self.text.regions[region].bytes);
            let mut at = 0;
            while at < bytes.len() {
                if self.text.regions[region].marks[at] & COVERED != 0 {
                    at += 1;
                    continue;
                }
                let padding = padding_len(&bytes[at..]);
                let address = start + at as u64;
                if padding != 0 {
                    self.padding += padding as u64;
                    at += padding;
                } else {
                    if self.is_code(address) {
                        self.add_entry(address);
                        self.drain();
                    }
                    at += 1;
                }
            }
        }
    }

    fn report(&mut self) {
        if self.covered >= self.reported + 0x4_0000 {
            self.reported = self.covered;
            (self.progress)(self.covered / 2, self.text.len());
        }
    }

    /// The second pass: blocks from the marks.
    fn into_program(mut self) -> Program {
        self.table_users.sort_unstable();
        for (jump, _) in &self.dispatches {
            let (start, end) = self.surroundings(*jump);
            let user = self.table_users.partition_point(|u| *u < start);
            match self.table_users.get(user) {
                Some(user) if *user < end => self.jump_tables += 1,
                _ => self.unresolved += 1,
            }
        }
        let total = self.text.len();
        let mut builder = Builder::default();
        for region in &mut self.text.regions {
            let mut decoder =
                Decoder::with_ip(64, region.bytes, region.start, DecoderOptions::NONE);
            let mut at = 0;
            while let Some(skip) = region.marks[at..].iter().position(|m| m & LEADER != 0) {
                at += skip;
                if region.marks[at] & FUNCTION != 0 {
                    builder.close();
                }
                let indirect = region.marks[at] & INDIRECT != 0;
                builder.add(cut_block(&mut decoder, region.start, at, &mut region.marks, indirect));
                at += 1;
                if at % 0x1_0000 == 0 {
                    (self.progress)(
                        total / 2 + (region.start + at as u64 - region.start) / 2,
                        total,
                    );
                }
            }
            builder.close();
        }
        (self.progress)(total, total);
        builder.functions.sort_unstable_by_key(|f| f.start);
        Program {
            functions: builder.functions,
            jump_tables: self.jump_tables,
            unresolved_indirect: self.unresolved,
            text_bytes: total - self.padding,
            lifted_bytes: self.covered,
        }
    }
}

/// Bytes of padding at the start of `bytes`: one no-operation, trap or run of zeros.
fn padding_len(bytes: &[u8]) -> usize {
    match bytes {
        [0xcc, ..] => 1,
        [0, ..] => bytes.iter().take_while(|b| **b == 0).count(),
        _ => {
            let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
            if insn.mnemonic() == Mnemonic::Nop {
                insn.len()
            } else {
                0
            }
        }
    }
}

#[cfg(test)]
#[path = "discover_tests.rs"]
mod tests;
