//! Conditions: `pc == main+0x12 && [rdi+8]:4 s< 0`.
//!
//! Numbers are of 64 bits. What is smaller (`[..]:1`, `eax`) is zero-extended; the operators with an `s` extend
//! the sign of what stands alone on their sides.

use std::collections::BTreeSet;

/// An expression: a number, or true (1) and false (0).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expression {
    Number(u64),
    /// A general register (hardware numbering), as so many bytes of it from byte `from` on.
    Register {
        number: u8,
        from: u8,
        bytes: u8,
    },
    Special(Special),
    Memory {
        address: Box<Expression>,
        bytes: u8,
    },
    Unary(Unary, Box<Expression>),
    Binary(Binary, Box<Expression>, Box<Expression>),
}

/// What is no general register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    Pc,
    Flags,
    FsBase,
    /// Kernel thread id.
    Thread,
    Turn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unary {
    Not,
    Minus,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binary {
    Or,
    And,
    /// A comparison: what it holds for, and whether signs count.
    Compare {
        less: bool,
        equal: bool,
        greater: bool,
        signed: bool,
    },
    Plus,
    Minus,
    Times,
    Bits,
}

/// What an expression is evaluated in.
pub trait State {
    fn gpr(&self, number: u8) -> u64;
    fn special(&self, which: Special) -> u64;
    /// Reads all of `bytes`; false if they are not all there.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;
}

/// What symbols stand for.
pub type Resolve<'a> = &'a mut dyn FnMut(&str) -> Result<u64, String>;

/// A condition, as it is typed.
pub fn parse(text: &str, resolve: Resolve) -> Result<Expression, String> {
    let mut parser = Parser { text, at: 0, resolve, depth: 0 };
    let expression = parser.binary(0)?;
    parser.blanks();
    if parser.at < text.len() {
        return Err(parser.wrong("an operator was expected"));
    }
    match expression.is_condition() {
        true => Ok(expression),
        false => Err("it is a number, not a condition: compare it with something (`!= 0`)".into()),
    }
}

impl Expression {
    fn is_condition(&self) -> bool {
        matches!(
            self,
            Expression::Unary(Unary::Not, _)
                | Expression::Binary(Binary::Or | Binary::And | Binary::Compare { .. }, ..)
        )
    }

    /// Its value. `None`: memory that it reads is not there.
    fn value(&self, state: &dyn State) -> Option<u64> {
        Some(match self {
            Expression::Number(number) => *number,
            Expression::Register { number, from, bytes } => {
                let bits = 8 * u32::from(*bytes);
                (state.gpr(*number) >> (8 * from)) & (u64::MAX >> (64 - bits))
            }
            Expression::Special(which) => state.special(*which),
            Expression::Memory { address, bytes } => {
                let mut word = [0; 8];
                let there = state.read(address.value(state)?, &mut word[..usize::from(*bytes)]);
                there.then_some(u64::from_le_bytes(word))?
            }
            Expression::Unary(Unary::Minus, of) => of.value(state)?.wrapping_neg(),
            Expression::Unary(Unary::Not, of) => u64::from(of.value(state)? == 0),
            Expression::Binary(Binary::Or, a, b) => match (a.value(state), b.value(state)) {
                (Some(1), _) | (_, Some(1)) => 1,
                (Some(_), Some(_)) => 0,
                _ => return None,
            },
            Expression::Binary(Binary::And, a, b) => match (a.value(state), b.value(state)) {
                (Some(0), _) | (_, Some(0)) => 0,
                (Some(_), Some(_)) => 1,
                _ => return None,
            },
            Expression::Binary(Binary::Compare { less, equal, greater, signed }, a, b) => {
                let (x, y) = (a.value(state)?, b.value(state)?);
                let order = match signed {
                    true => a.extended(x).cmp(&b.extended(y)),
                    false => x.cmp(&y),
                };
                u64::from(match order {
                    std::cmp::Ordering::Less => *less,
                    std::cmp::Ordering::Equal => *equal,
                    std::cmp::Ordering::Greater => *greater,
                })
            }
            Expression::Binary(with, a, b) => {
                let (a, b) = (a.value(state)?, b.value(state)?);
                match with {
                    Binary::Minus => a.wrapping_sub(b),
                    Binary::Times => a.wrapping_mul(b),
                    Binary::Bits => a & b,
                    _ => a.wrapping_add(b),
                }
            }
        })
    }

    /// With the sign that a value of its size has.
    fn extended(&self, value: u64) -> i64 {
        let bytes = match self {
            Expression::Register { bytes, .. } | Expression::Memory { bytes, .. } => *bytes,
            _ => 8,
        };
        let unused = 64 - 8 * u32::from(bytes);
        (value << unused).cast_signed() >> unused
    }

    /// Whether the condition holds. Where memory is not there that it reads, it does not.
    pub fn holds(&self, state: &dyn State) -> bool {
        self.verdict(state) == Some(true)
    }

    /// The same; `None`: it depends on memory that cannot be read.
    pub fn verdict(&self, state: &dyn State) -> Option<bool> {
        self.value(state).map(|value| value == 1)
    }

    /// Whether it reads memory.
    pub fn reads_memory(&self) -> bool {
        let mut reads = false;
        self.each(&mut |part| reads |= matches!(part, Expression::Memory { .. }));
        reads
    }

    fn constant(&self) -> Option<u64> {
        struct Nothing;
        impl State for Nothing {
            fn gpr(&self, _: u8) -> u64 {
                0
            }
            fn special(&self, _: Special) -> u64 {
                0
            }
            fn read(&self, _: u64, _: &mut [u8]) -> bool {
                false
            }
        }
        let mut depends = false;
        self.each(&mut |part| {
            depends |= matches!(
                part,
                Expression::Register { .. } | Expression::Special(_) | Expression::Memory { .. }
            );
        });
        if depends {
            None
        } else {
            self.value(&Nothing)
        }
    }

    fn each(&self, tell: &mut dyn FnMut(&Expression)) {
        tell(self);
        match self {
            Expression::Memory { address: of, .. } | Expression::Unary(_, of) => of.each(tell),
            Expression::Binary(_, a, b) => {
                a.each(tell);
                b.each(tell);
            }
            _ => {}
        }
    }

    /// Addresses of instructions, outside of which the condition cannot hold. `None`: it can anywhere.
    pub fn pcs(&self) -> Option<BTreeSet<u64>> {
        const EQUAL: Binary =
            Binary::Compare { less: false, equal: true, greater: false, signed: false };
        match self {
            Expression::Binary(with, a, b) if *with == EQUAL => {
                let pc = Expression::Special(Special::Pc);
                let other = match () {
                    () if **a == pc => b,
                    () if **b == pc => a,
                    () => return None,
                };
                Some(BTreeSet::from([other.constant()?]))
            }
            Expression::Binary(Binary::And, a, b) => match (a.pcs(), b.pcs()) {
                (Some(a), Some(b)) => Some(a.intersection(&b).copied().collect()),
                (a, b) => a.or(b),
            },
            Expression::Binary(Binary::Or, a, b) => {
                Some(a.pcs()?.union(&b.pcs()?).copied().collect())
            }
            _ => None,
        }
    }

    /// The parts of it that have to hold together.
    fn together(&self) -> Vec<&Expression> {
        match self {
            Expression::Binary(Binary::And, a, b) => {
                a.together().into_iter().chain(b.together()).collect()
            }
            all => vec![all],
        }
    }

    /// The part that depends on memory at known addresses alone, if there is one: without it the condition
    /// does not hold. The second: whether that is all.
    pub fn of_memory(&self) -> (Option<Expression>, bool) {
        let parts = self.together();
        let all = parts.len();
        let mut chosen: Vec<&Expression> = parts;
        chosen.retain(|part| part.memory().is_some_and(|read| !read.is_empty()));
        let whole = chosen.len() == all;
        let part = chosen
            .into_iter()
            .cloned()
            .reduce(|a, b| Expression::Binary(Binary::And, Box::new(a), Box::new(b)));
        (part, whole)
    }

    /// Where it reads memory, if it depends on nothing else: address, bytes.
    pub fn memory(&self) -> Option<BTreeSet<(u64, u64)>> {
        match self {
            Expression::Number(_) => Some(BTreeSet::new()),
            Expression::Register { .. } | Expression::Special(_) => None,
            Expression::Memory { address, bytes } => {
                Some(BTreeSet::from([(address.constant()?, u64::from(*bytes))]))
            }
            Expression::Unary(_, of) => of.memory(),
            Expression::Binary(_, a, b) => Some(a.memory()?.union(&b.memory()?).copied().collect()),
        }
    }
}

struct Parser<'a, 'r> {
    text: &'a str,
    at: usize,
    resolve: Resolve<'r>,
    depth: u32,
}

/// Deeper is not parsed.
const DEEPEST: u32 = 200;

/// In the order in which they are tried; how tightly they bind.
const OPERATORS: [(&str, u8, Binary); 18] = {
    const fn compare(less: bool, equal: bool, greater: bool, signed: bool) -> Binary {
        Binary::Compare { less, equal, greater, signed }
    }
    [
        ("||", 1, Binary::Or),
        ("&&", 2, Binary::And),
        ("s<=", 3, compare(true, true, false, true)),
        ("s>=", 3, compare(false, true, true, true)),
        ("s<", 3, compare(true, false, false, true)),
        ("s>", 3, compare(false, false, true, true)),
        ("==", 3, compare(false, true, false, false)),
        ("!=", 3, compare(true, false, true, false)),
        ("<=", 3, compare(true, true, false, false)),
        (">=", 3, compare(false, true, true, false)),
        ("<", 3, compare(true, false, false, false)),
        (">", 3, compare(false, false, true, false)),
        ("+", 5, Binary::Plus),
        ("-", 5, Binary::Minus),
        ("*", 6, Binary::Times),
        ("&", 4, Binary::Bits),
        // What is often typed, and means nothing here.
        ("=", 0, Binary::Or),
        ("|", 0, Binary::Or),
    ]
};

impl<'a> Parser<'a, '_> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn takes(&mut self, what: &str) -> bool {
        self.blanks();
        let there = self.rest().starts_with(what);
        self.at += if there { what.len() } else { 0 };
        there
    }

    fn wrong(&self, why: &str) -> String {
        match self.rest() {
            "" => format!("{why}, where it ends"),
            rest => format!("{why}, at `{rest}`"),
        }
    }

    /// Operators that bind more tightly than `above`.
    fn binary(&mut self, above: u8) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("it is too deep".into());
        }
        let mut left = self.unary()?;
        loop {
            self.blanks();
            let found = OPERATORS.iter().find(|(text, ..)| self.rest().starts_with(text));
            let Some(&(text, binds, with)) = found else { break };
            if binds == 0 {
                return Err(self.wrong("expected `==`, `!=`, `<`, `s<`, `&&` or `||`"));
            }
            if binds <= above {
                break;
            }
            self.at += text.len();
            let right = self.binary(binds)?;
            let logical = matches!(with, Binary::Or | Binary::And);
            if left.is_condition() != logical || right.is_condition() != logical {
                return Err(match logical {
                    true => format!("`{text}` joins conditions; compare a number with something"),
                    false => format!("`{text}` takes numbers, and one side is a condition"),
                });
            }
            left = Expression::Binary(with, Box::new(left), Box::new(right));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("it is too deep".into());
        }
        let expression = if self.takes("!") {
            let of = self.unary()?;
            if !of.is_condition() {
                return Err("`!` takes a condition, in parentheses".into());
            }
            Expression::Unary(Unary::Not, Box::new(of))
        } else if self.takes("-") {
            let of = self.unary()?;
            if of.is_condition() {
                return Err("`-` takes a number".into());
            }
            Expression::Unary(Unary::Minus, Box::new(of))
        } else if self.takes("(") {
            let of = self.binary(0)?;
            self.expect(")")?;
            of
        } else if self.takes("[") {
            let address = self.binary(0)?;
            if address.is_condition() {
                return Err("an address is no condition".into());
            }
            self.expect("]")?;
            let bytes = match self.takes(":") {
                false => 8,
                true => match self.word() {
                    "1" => 1,
                    "2" => 2,
                    "4" => 4,
                    "8" => 8,
                    other => return Err(format!("[..]:{other}: expected a size of 1, 2, 4 or 8")),
                },
            };
            Expression::Memory { address: Box::new(address), bytes }
        } else {
            self.primary()?
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn expect(&mut self, what: &str) -> Result<(), String> {
        match self.takes(what) {
            true => Ok(()),
            false => Err(self.wrong(&format!("`{what}` was expected"))),
        }
    }

    /// Letters and digits, and what else symbols and files have in their names.
    fn word(&mut self) -> &'a str {
        self.blanks();
        let rest = self.rest();
        let is_in = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '$' | '@' | ':');
        let end = rest.find(|c| !is_in(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn primary(&mut self) -> Result<Expression, String> {
        self.blanks();
        for quote in ["'", "\""] {
            if let Some(rest) = self.rest().strip_prefix(quote) {
                let end = rest.find(quote).ok_or(self.wrong("the name does not end"))?;
                self.at += end + 2;
                return Ok(Expression::Number((self.resolve)(&rest[..end])?));
            }
        }
        let word = self.word();
        if word.is_empty() {
            return Err(self.wrong("a number, a register, a symbol or `[` was expected"));
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let number = crate::ask::place::number(word);
            return Ok(Expression::Number(number.ok_or(format!("{word}: no number"))?));
        }
        Ok(match word {
            "pc" | "rip" => Expression::Special(Special::Pc),
            "rflags" => Expression::Special(Special::Flags),
            "fs_base" => Expression::Special(Special::FsBase),
            "thread" => Expression::Special(Special::Thread),
            "turn" => Expression::Special(Special::Turn),
            name => match register(name) {
                Some((number, from, bytes)) => Expression::Register { number, from, bytes },
                None => Expression::Number((self.resolve)(name)?),
            },
        })
    }
}

/// Number, first byte and bytes of a general register.
fn register(name: &str) -> Option<(u8, u8, u8)> {
    const NAMES: [[&str; 4]; 8] = [
        ["rax", "eax", "ax", "al"],
        ["rcx", "ecx", "cx", "cl"],
        ["rdx", "edx", "dx", "dl"],
        ["rbx", "ebx", "bx", "bl"],
        ["rsp", "esp", "sp", "spl"],
        ["rbp", "ebp", "bp", "bpl"],
        ["rsi", "esi", "si", "sil"],
        ["rdi", "edi", "di", "dil"],
    ];
    const SIZES: [u8; 4] = [8, 4, 2, 1];
    for (number, names) in (0..).zip(&NAMES) {
        if let Some(at) = names.iter().position(|other| *other == name) {
            return Some((number, 0, SIZES[at]));
        }
    }
    if let Some(high) = ["ah", "ch", "dh", "bh"].iter().position(|other| *other == name) {
        return Some((high as u8, 1, 1));
    }
    let rest = name.strip_prefix('r')?;
    let (digits, bytes) = match rest.as_bytes().last()? {
        b'd' => (&rest[..rest.len() - 1], 4),
        b'w' => (&rest[..rest.len() - 1], 2),
        b'b' => (&rest[..rest.len() - 1], 1),
        _ => (rest, 8),
    };
    let number: u8 = digits.parse().ok().filter(|n| (8..16).contains(n))?;
    (digits == number.to_string()).then_some((number, 0, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Simple;

    impl State for Simple {
        fn gpr(&self, number: u8) -> u64 {
            match number {
                0 => 0x1122_3344_5566_88f7,
                7 => 0x1000,
                _ => u64::from(number),
            }
        }
        fn special(&self, which: Special) -> u64 {
            match which {
                Special::Pc => 0x40_0012,
                Special::Thread => 77,
                _ => 5,
            }
        }
        fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
            bytes.fill(0xff);
            (0x1000..0x1100).contains(&address)
        }
    }

    fn parsed(text: &str) -> Result<Expression, String> {
        parse(text, &mut |name| match name {
            "main" => Ok(0x40_0000),
            "libc.so.6:environ" | "a-b" => Ok(0x1008),
            _ => Err(format!("no {name}")),
        })
    }

    #[test]
    fn conditions_hold_or_do_not() {
        for (text, expected) in [
            ("pc == main+0x12", true),
            ("main + 0x12 == pc && thread == 77", true),
            ("rip != 0x400012 || r9 == 9", true),
            ("eax == 0x556688f7 && ax == 0x88f7 && al == 0xf7 && ah == 0x88", true),
            ("al > 100 && al s< 0", true),
            ("r10d >= 10 && r10b <= 10 && r10w < 11", true),
            ("[rdi]:1 == 255 && [rdi+8]:4 == 0xffffffff && [rdi]:4 s> -2", true),
            ("[rdi] == -1", true),
            ("[libc.so.6:environ]:2 s>= 0", false),
            ("['a-b']:2 == 0xffff", true),
            // Nothing is there.
            ("[0x10]:1 == 0", false),
            ("!([0x10]:1 == 0)", false),
            ("[0x10]:1 == 0 || rcx == 1", true),
            ("rcx == 2 && [0x10]:1 == 0", false),
            ("!(rcx == 2)", true),
            ("rcx + 2 * 3 - 1 == 6 && rax & 0xff == 0xf7", true),
            ("rcx==1||rcx==2&&rcx==3", true),
            ("(rcx==1||rcx==2)&&rcx==3", false),
        ] {
            let condition = parsed(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(condition.holds(&Simple), expected, "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (text, why) in [
            ("", "was expected"),
            ("rax", "a number, not a condition"),
            ("rax = 5", "expected `==`"),
            ("rax == 5 &&", "was expected, where it ends"),
            ("rax && rbx", "joins conditions"),
            ("(rax == 1) + 2 == 3", "takes numbers"),
            ("1 < rax < 5", "takes numbers"),
            ("[rax]:3 == 1", "size of 1, 2, 4 or 8"),
            ("[rax == 1", "an address is no condition"),
            ("(rax == 1", "`)` was expected"),
            ("nothing == 1", "no nothing"),
            ("0x == 1", "no number"),
            ("rax == 1 rbx", "an operator was expected"),
            ("!rax == 1", "in parentheses"),
            ("'main == 1", "does not end"),
            (&"(".repeat(10_000), "too deep"),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn places_are_found_in_conditions() {
        let pcs = |text| parsed(text).expect(text).pcs().map(|pcs| pcs.into_iter().collect());
        assert_eq!(pcs("pc == main && rax > 5"), Some(vec![0x40_0000]));
        assert_eq!(
            pcs("rax > 5 && (pc == main || pc == main+4)"),
            Some(vec![0x40_0000, 0x40_0004])
        );
        assert_eq!(pcs("pc == main && pc == main + 1"), Some(Vec::new()));
        for text in ["pc == main || rax == 1", "!(pc == main)", "pc == rax", "pc != main"] {
            assert_eq!(pcs(text), None, "{text}");
        }
        let memory = |text| {
            let (part, whole) = parsed(text).expect(text).of_memory();
            (part.and_then(|part| part.memory()).map(|all| all.into_iter().collect()), whole)
        };
        assert_eq!(memory("[0x4040]:4 == 7 && rdi != 0"), (Some(vec![(0x4040, 4)]), false));
        assert_eq!(memory("[0x40]:4 == 7 && [8]:1 > 2"), (Some(vec![(8, 1), (0x40, 4)]), true));
        assert_eq!(memory("[rdi]:4 == 7 && rdi != 0"), (None, false));
        assert_eq!(memory("[[8]]:4 == 7"), (None, false));
    }
}
