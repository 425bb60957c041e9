"""Chooses branches of the program that depend on a truth value from the device.

No kernel runs, so the hook may choose the value. The hook reads the program's source. It chooses a
value with which the program does not raise an error, and does not leave a loop early.
"""

import ast
import dis
import itertools
import linecache

from .lines import place, variables
from .process import state

# Number of rounds without growth of memory after which the hook makes a `while` loop end. Further
# rounds would take no more memory.
ROUNDS = 100
# Number of rounds of a `while` loop with growing memory after which the hook makes the loop end. A
# round may add a token to a sequence, and few programs generate more tokens.
MOST_ROUNDS = 4096
# Maximum number of frames to search for a test of a read value: the reading frame and callers.
CALLERS = 4
# Ways in which a branch of the program may end, from the best to the worst.
GOES_ON, RETURNS, LEAVES_LOOP, FAILS = range(4)
# Functions that end the program.
EXITS = {"exit", "quit", "_exit", "abort"}
# Functions whose result is rarely true. A true result means that there was an error.
RARE = {"isnan", "isinf", "isneginf", "isposinf"}
# Comparisons that hold for equal values, and comparisons that hold for different values.
SAME, DIFFERENT = (ast.Eq, ast.In), (ast.NotEq, ast.NotIn)
# Comparisons that hold if the left number is the largest possible count. In the first tuple, the
# right number may be that count too. In the second tuple, the right number is 0.
LARGE_OR_EQUAL, LARGE = (ast.Gt, ast.GtE, ast.Eq), (ast.Gt, ast.GtE, ast.NotEq)
# Kinds of nodes in the expressions that the hook evaluates.
VALUES = (ast.Constant, ast.Name, ast.Attribute, ast.Tuple, ast.List, ast.Set, ast.expr_context)


def truth(frame):
    """Chooses the truth value that the code of `frame` reads, so that the program continues."""
    at = call_path(frame)
    if at not in state.branches:
        state.branches[at] = find_branch(frame)
    branch = state.branches[at]
    if branch is None:
        return True
    if branch.loop is not None and not is_staying(branch, frame):
        return not branch.value
    return branch.value


def call_path(frame):
    """Returns the positions in `frame` and in its caller, as a key of `state.branches`.

    The key includes the caller, because the caller may test the value that `frame` reads.
    """
    back = frame.f_back
    return frame.f_code, frame.f_lasti, back and back.f_code, back and back.f_lasti


class Branch:
    """Truth value with which a condition lets the program go on: no error, return or `break`."""

    def __init__(self, value, loop=None):
        self.value = value
        # Loop that ends if the condition is not `value`; None if no loop ends.
        self.loop = loop
        # Most live bytes in a round of `loop`.
        self.most = 0
        # Number of rounds since the round with the most live bytes.
        self.rounds = 0
        self.all_rounds = 0


def is_staying(branch, frame):
    """Returns True if the hook should choose a value with which the loop of `branch` goes on.

    A `for` loop runs to its end. A `while` loop ends after rounds in which live memory did not
    grow. Growth counts even if live memory stays below the program's peak, because the allocator
    may reserve more memory.
    """
    if isinstance(branch.loop, (ast.For, ast.AsyncFor)):
        state.note(f"a result may end the loop at {place(frame)} early: it ran to its last round")
        return True
    live = state.allocated()[2]
    branch.rounds = 0 if live > branch.most else branch.rounds + 1
    branch.most = max(branch.most, live)
    branch.all_rounds += 1
    if branch.rounds < ROUNDS and branch.all_rounds < MOST_ROUNDS:
        return True
    reason = f"{ROUNDS} rounds in which memory did not grow"
    if branch.rounds < ROUNDS:
        reason = f"{MOST_ROUNDS} rounds, and more rounds may take more memory"
    state.note(left(frame, reason))
    branch.rounds = branch.all_rounds = 0
    return False


def left(frame, reason):
    return f"a result ends the loop at {place(frame)}: it was left after {reason}"


def find_branch(frame):
    """Finds the condition that tests the value read by `frame`, and returns the branch to take.

    Returns None if the program continues after either branch, or if no condition tests the value.
    """
    where = position(frame)
    for node, loop in tests_of(frame.f_code.co_filename).get(frame.f_lineno, ()):
        found = operand_at(node.test, where)
        if found is None:
            continue
        read, is_negated = found
        branch = consequence(node, loop)
        if branch is not None:
            branch.value = branch.value != is_negated
            return branch
        return Branch(False) if names_in(read) & RARE else None
    # No condition on this line tests the value. If `isnan` or `isinf` computed it, chooses False,
    # because True would mean an error.
    expression = expression_at(frame, where)
    if expression is not None and names_in(expression) & RARE:
        return Branch(False)
    for part, wanted, loop in parts_that_read(frame):
        if not isinstance(part, ast.Compare):
            return Branch(wanted, loop)
    return None


def count_that_stays(bound, frame):
    """Chooses the count that the code of `frame` reads: `bound`, the largest possible count, or 0.

    Chooses 0 only if a loop tests the count. One of the two counts then continues the loop, and the
    other ends it. `is_staying` decides which of them the hook chooses.
    """
    if frame is None:
        return bound
    at = call_path(frame)
    if at not in state.branches:
        state.branches[at] = find_comparison(frame)
    branch = state.branches[at]
    return bound if branch is None or branch.value == is_staying(branch, frame) else 0


def find_comparison(frame):
    """Returns the branch of a loop that tests the count; None without such a loop.

    The branch is True if the loop goes on while the count is as large as possible.
    """
    for part, wanted, loop in parts_that_read(frame):
        is_true = True
        if isinstance(part, ast.Compare):
            other = part.comparators[0]
            is_zero = isinstance(other, ast.Constant) and other.value == 0
            is_true = isinstance(part.ops[0], LARGE if is_zero else LARGE_OR_EQUAL)
        return Branch(is_true == wanted, loop)
    return None


def parts_that_read(frame):
    """Yields each part of a loop condition that uses the value that `frame` read.

    A part uses the value by the call that read it, or by the variable that stores it. Each part
    comes with its truth value that keeps the program in the loop, and with the loop. In a
    comparison, the value is on the left. If `frame` returns the value, the caller's conditions are
    searched.
    """
    is_changed = False
    for _ in range(CALLERS):
        where, found = position(frame), expression_at(frame, None)
        if where is None or found is None or not found.body:
            return
        statement = found.body[0]
        if isinstance(statement, (ast.Assign, ast.Return)) and statement.value is not None:
            is_changed ^= parts_of(statement.value)[0][1]
        if not isinstance(statement, ast.Return) or frame.f_back is None:
            break
        frame = frame.f_back
    names = names_in(ast.Tuple(getattr(statement, "targets", [])))
    for test, branch in tests_around(frame):
        for part, is_negated in parts_of(test):
            read = part.left if isinstance(part, ast.Compare) else part
            is_stored = isinstance(read, ast.Name) and read.id in names
            if is_stored or encloses(span(read), where):
                yield part, branch.value != (is_negated != is_changed), branch.loop


def consequence(node, loop):
    """Returns the truth value of a condition with which the program continues, as a `Branch`.

    Returns None if both truth values lead to the same end.
    """
    if isinstance(node, ast.Assert):
        return Branch(True)
    if isinstance(node, ast.While):
        return Branch(True, node)
    taken, otherwise = end_of(node.body, loop), end_of(node.orelse, loop)
    if taken == otherwise:
        return None
    is_leaving = LEAVES_LOOP in (taken, otherwise) and FAILS not in (taken, otherwise)
    return Branch(taken < otherwise, loop if is_leaving else None)


def end_of(body, loop):
    """Returns how the statements of `body` end, such as `LEAVES_LOOP` for a `break`."""
    for statement in body:
        if isinstance(statement, ast.Raise) or is_failing(statement):
            return FAILS
        if isinstance(statement, ast.Break):
            return LEAVES_LOOP
        if isinstance(statement, ast.Return):
            if loop is not None:
                return LEAVES_LOOP
            is_short = isinstance(statement.value, (type(None), ast.Constant, ast.Name))
            return RETURNS if is_short else GOES_ON
    return GOES_ON


def is_failing(statement):
    """Returns True for a statement that asserts False or ends the program."""
    if isinstance(statement, ast.Assert):
        return is_false(statement.test)
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return False
    function, arguments = statement.value.func, statement.value.args
    name = getattr(function, "attr", getattr(function, "id", None))
    return name in EXITS or (name == "_assert" and bool(arguments) and is_false(arguments[0]))


def is_false(expression):
    return isinstance(expression, ast.Constant) and expression.value is False


def operand_at(test, where):
    """Returns the operand of `and`, `or` or `not` at a position, and whether it is negated.

    Returns None if the position is outside of the condition, or inside of a comparison or a call.
    If `where` is None, prefers an operand with a call, because a call such as `item` may be the
    expression that read the value.
    """
    if where is not None and not encloses(span(test), where):
        return None
    parts = [part for part in parts_of(test) if where is None or span(part[0]) == where]
    calls = [part for part in parts if any(isinstance(one, ast.Call) for one in ast.walk(part[0]))]
    candidates = calls or parts
    is_clear = len({is_negated for _, is_negated in candidates}) == 1
    return candidates[0] if is_clear else None


def parts_of(test, is_negated=False):
    """Returns the operands of a condition's `and`, `or` and `not`, and whether each is negated."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return parts_of(test.operand, not is_negated)
    if isinstance(test, ast.BoolOp):
        return [found for part in test.values for found in parts_of(part, is_negated)]
    return [(test, is_negated)]


def ends_slice(frame):
    """Returns True if `frame` is about to read the end of a slice, such as `n` of `x[m:n]`.

    Python reads the start of a slice before its end.
    """
    at = (frame.f_code, frame.f_lasti)
    if at not in state.slices:
        expression = expression_at(frame, position(frame)) or ast.Expression()
        slices = [part for part in ast.walk(expression) if isinstance(part, ast.Slice)]
        bounds = [(part.lower, part.upper) for part in slices]
        fixed = (type(None), ast.Constant)
        ends = [i for pair in bounds for i in (0, 1) if not isinstance(pair[i], fixed)]
        state.slices[at] = itertools.cycle(ends or [0])
    return next(state.slices[at]) == 1


def number(frame):
    """Chooses the integer that the code of `frame` reads, so that the program continues.

    Chooses the smallest integer with which no comparison ends a loop around the read. It is mostly
    0, and 0 is also an index in range. Some `while` loops end only if the integer has a certain
    value. Such a loop gets that value after `MOST_ROUNDS` rounds. A loop over the indices that
    `nonzero` found in a vector gets the number of earlier rounds. Models loop in this way over the
    experts that have tokens.
    """
    ends = set()
    for _ in range(CALLERS):
        if frame is None:
            break
        row = row_of_loop(frame)
        if row is not None:
            return row
        at = (frame.f_code, frame.f_lineno)
        if at not in state.ends:
            state.ends[at] = ends_of_loops(frame)
        found = {value for end in state.ends[at] for value in integers(end, frame)}
        last = end_of_last_round(at, frame, sorted(found))
        if last is not None:
            return last
        ends |= found
        frame = frame.f_back
    return next(value for value in itertools.count() if value not in ends)


def row_of_loop(frame):
    """Returns the number of earlier rounds in a loop over rows that `nonzero` found in a vector.

    Returns None outside of such a loop. Counts a round at each read: assumes that an expression of
    the loop reads once in a round.
    """
    at = (frame.f_code, frame.f_lineno)
    if at not in state.loops:
        loops = [
            node
            for node in ast.walk(parsed(frame.f_code.co_filename))
            if isinstance(node, ast.For) and node.lineno < at[1] <= node.end_lineno
        ]
        state.loops[at] = getattr(loops[-1].iter, "id", None) if loops else None
    rows = variables(frame).get(state.loops[at]) if state.loops[at] else None
    if not hasattr(rows, "dim") or rows.dim() != 2 or rows.shape[1] != 1:
        return None
    read = (frame.f_code, position(frame) or frame.f_lineno)
    state.rounds[read] = state.rounds.get(read, -1) + 1
    return state.rounds[read] % len(rows)


def end_of_last_round(at, frame, ends):
    """Counts a round of the loop at `at`. After `MOST_ROUNDS`, returns one of `ends`.

    `ends` are integers that may end the loop. Returns None if the loop should go on.
    """
    is_while = any(isinstance(end.loop, ast.While) for end in state.ends[at])
    if not ends or not is_while:
        return None
    rounds = state.rounds[at] = state.rounds.get(at, 0) + 1
    if rounds < MOST_ROUNDS:
        return None
    state.note(left(frame, f"{MOST_ROUNDS} rounds, and more rounds may take more memory"))
    # Tries another of `ends` in each further round, because some of them may not end the loop: the
    # condition may compare them with other values.
    if rounds - MOST_ROUNDS == len(ends) - 1:
        state.rounds[at] = 0
    return ends[rounds - MOST_ROUNDS]


class End:
    """A loop that ends if the value that the program reads equals an expression.

    `code` is the compiled expression.
    """

    def __init__(self, code, loop):
        self.code, self.loop = code, loop


def ends_of_loops(frame):
    """Returns the comparisons that may end loops around the line that `frame` executes."""
    found = []
    for test, branch in tests_around(frame):
        kinds = DIFFERENT if branch.value else SAME
        for part in ast.walk(test):
            if isinstance(part, ast.Compare) and isinstance(part.ops[0], kinds):
                found.append(End(compile_value(part.comparators[0]), branch.loop))
    return [end for end in found if end.code is not None]


def tests_around(frame):
    """Yields each condition that may end a loop around the line of `frame`, and its `Branch`."""
    line = frame.f_lineno
    pairs = itertools.chain(*tests_of(frame.f_code.co_filename).values())
    for node, loop in {id(pair[0]): pair for pair in pairs}.values():
        branch = consequence(node, loop)
        loop = branch and branch.loop
        if loop is not None and loop.lineno <= line <= loop.end_lineno:
            yield node.test, branch


def compile_value(expression):
    """Compiles an expression of names, attributes and constants. Returns None for others."""
    if all(isinstance(part, VALUES) for part in ast.walk(expression)):
        return compile(ast.Expression(expression), "<end of a loop>", "eval")
    return None


def integers(end, frame):
    """Returns the integers that end the loop of `end`, by its expression evaluated in `frame`."""
    try:
        value = eval(end.code, frame.f_globals, variables(frame))
        values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        return {one for one in values if type(one) is int}
    except Exception:
        # A name has no value yet.
        return set()


def parsed(file):
    """Returns the parsed source of a file; an empty module if the source is missing or invalid."""
    if file not in state.sources:
        try:
            state.sources[file] = ast.parse("".join(linecache.getlines(file)))
        except (SyntaxError, ValueError, RecursionError):
            state.sources[file] = ast.Module([])
    return state.sources[file]


def tests_of(file):
    """Returns a file's `if`, `while` and `assert` statements, keyed by line of the condition.

    The innermost statement of a line comes first. Each statement is paired with the loop around it
    in the same function, or None.
    """
    if file not in state.tests:
        found = state.tests[file] = {}
        try:
            add_tests(parsed(file), None, found)
        except RecursionError:
            pass
    return state.tests[file]


def add_tests(node, loop, found):
    if isinstance(node, (ast.If, ast.While, ast.Assert)):
        last = node.test.end_lineno or node.test.lineno
        for line in range(node.lineno, last + 1):
            found.setdefault(line, []).insert(0, (node, loop))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        loop = None
    for part in ast.iter_child_nodes(node):
        inner = node if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) else loop
        add_tests(part, inner, found)


def expression_at(frame, where):
    """Returns the expression at a position, or on the whole line if the position is not known."""
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    if where is not None and where[0] == where[2] == frame.f_lineno:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).encode()
        text = line[where[1] : where[3]].decode(errors="replace")
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def names_in(node):
    """Returns the names and attributes in an expression."""
    parts = ast.walk(node)
    return {getattr(part, "attr", getattr(part, "id", None)) for part in parts}


def position(frame):
    """Returns the position of a frame's instruction in its file; None before Python 3.11.

    For a jump, returns the position of the instruction before it, because Python 3.11 gives some
    jumps the position of another expression.
    """
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:
        return None
    earlier = "JUMP" in dis.opname[frame.f_code.co_code[frame.f_lasti]]
    for index, (line, last_line, column, last_column) in enumerate(positions()):
        if index == frame.f_lasti // 2 - earlier:
            where = (line, column, last_line, last_column)
            return None if None in where else where
    return None


def span(node):
    return (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


def encloses(outer, inner):
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]
