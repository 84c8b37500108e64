"""The catalogue of check codes, with explanations.

The only table of the codes of policy faults: `docs/policy-errors.md`, SARIF's rules and the tests read it. Codes of
other files (`sidecar.yaml`, `budgets.yaml`) begin with other letters and belong to their own readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Level = Literal["error", "warning", "note"]


class CodeMeaning(NamedTuple):
    """`about` in one line, `mend` in one or two sentences. A note is a warning of less weight, without effect yet."""

    about: str
    mend: str
    level: Level = "error"


FILES: Mapping[str, CodeMeaning] = {
    "P001": CodeMeaning(
        "A file or folder cannot be read, or is larger than is read",
        "Put it there, make it readable, or split it. A pipe or a device is never opened.",
    ),
    "P002": CodeMeaning(
        "A file whose name says nothing",
        "Rename it to <kind>.csv, <kind>.<name>.csv, roles.csv or guardrails.csv, or take it out of the folder. An "
        "unknown file is an error so that a mistyped name is never a policy that silently does not apply.",
    ),
    "P003": CodeMeaning("A YAML file that is not read", "It belongs to the top folder: move it there."),
    "P004": CodeMeaning(
        "No rule in any file",
        "An empty policy is a broken mount or a truncated file far more often than a wish: write at least one rule.",
    ),
    "P005": CodeMeaning("A file that is not UTF-8", "Save it as UTF-8."),
    "P007": CodeMeaning("A file that an editor left behind", "Remove it: it is not read.", "warning"),
    "P008": CodeMeaning(
        "The process that reads a large policy died, or took longer than two minutes",
        "Give the machine more memory, or split the policy. The old policy serves on.",
    ),
    "P009": CodeMeaning(
        "A link that leads out of the folder",
        "Put the file itself there. A fault quotes the line it is about, and a link would let whoever writes into the "
        "folder read any file's first faulty line. Links inside the folder (Kubernetes' ..data) are followed.",
    ),
}

ROWS: Mapping[str, CodeMeaning] = {
    "P101": CodeMeaning("A row of unknown type", "A row begins with p, g or g2; fields are separated by commas."),
    "P102": CodeMeaning(
        "A row with too few or too many fields, or a quote that does not fit",
        "Write every column of the model, - for none. Quote a field that holds a comma or a double quote, as in RFC "
        "4180.",
    ),
    "P103": CodeMeaning(
        "No subject, or one that this permission kind never asks",
        "user_to_nhi asks users, nhi_to_nhi asks NHIs, agent_to_tool and guardrails ask both. Roles are written "
        "role:<name>, everybody who was identified is *.",
    ),
    "P104": CodeMeaning("An unknown action", "Write one of the actions, a pattern that some action fits, or use."),
    "P105": CodeMeaning(
        "An effect that is neither allow nor deny, or an allow row among guardrails",
        "Write it in lower case, with nothing behind it: a comment stands on a line of its own. A guardrail only "
        "denies: move an allow row into the file of its kind.",
    ),
    "P106": CodeMeaning("No time", "Write an RFC 3339 time with a zone, such as 2027-03-31T00:00:00Z."),
    "P107": CodeMeaning(
        "No limit",
        "Write a number from 1 to 999999999, or - for none. A limit of 0 would be a deny row in disguise; a deny row "
        "has none.",
    ),
    "P108": CodeMeaning("The same rule, or the same id, twice", "Take one away, or give it an id of its own."),
    "P109": CodeMeaning(
        "A #: line that says something unknown",
        "It holds key=value pairs (id owner reason shadow per created_at) and stands directly above its row.",
    ),
    "P110": CodeMeaning(
        "A character that may look like another, or like none, or a line that is too long",
        "Retype it: names are plain ASCII. Invisible and control characters are refused everywhere.",
    ),
    "P111": CodeMeaning("A row in the wrong file", "p rows go into <kind>.csv, g and g2 rows into roles.csv."),
    "P112": CodeMeaning(
        "A row outside of what its folder may say",
        "Name what policy.scopes permits this folder, or ask who owns sidecar.yaml for a wider scope.",
    ),
    "P113": CodeMeaning(
        "No object, or one that this permission kind never asks",
        "Write tool:<server>/<tool>, prompt:<server>/<name>, resource:<server>/<uri>, nhi:<name> or set:<name>. One "
        "row, one object: put several into a set.",
    ),
    "P114": CodeMeaning(
        "A part of a rule that does not fit the rule",
        "A row with part_of stands below another row of that rule, and differs from it in subject and object only.",
    ),
    "P115": CodeMeaning(
        "A deny row under a model that knows no deny",
        "Take the row away, or give the model the effect some-allow-and-no-deny.",
    ),
    "P116": CodeMeaning("No domain", "Write the namespace of an issuer exactly, or - for principals without one."),
    "P120": CodeMeaning(
        "A deny row that ends",
        "What it forbids will be allowed then. Take the expiry away, or let the allow row end instead.",
        "warning",
    ),
    "P121": CodeMeaning("An upstream that is not configured", "Correct the name, or add it to upstreams.", "warning"),
    "P122": CodeMeaning(
        "A resource in another spelling than calls are decided in",
        "The rule is read as told, and holds for every spelling of the URI. Write it so: scheme and host in lower "
        "case, nothing encoded that need not be, no default port, file:///… for local files.",
        "warning",
    ),
    "P123": CodeMeaning(
        "A resource that no call can name, or capitals that fit no host",
        "Calls whose URI has dot segments, encoded slashes, user information or the like are refused before rules are "
        "asked. Hosts are decided in lower case: a pattern such as *Secret* fits paths only, so write another row for "
        "*secret*.",
        "warning",
    ),
}

MODELS: Mapping[str, CodeMeaning] = {
    "P201": CodeMeaning(
        "A line of a model that Casbin's form does not have", "Keep to the five sections and their keys."
    ),
    "P202": CodeMeaning(
        "A definition with other names than ours",
        "A request, a row and a role have fixed fields; columns may stand in any order.",
    ),
    "P203": CodeMeaning(
        "An effect that allows by default, or by the order of rows",
        "Write e = some(where (p.eft == allow)) && !some(where (p.eft == deny)).",
    ),
    "P204": CodeMeaning(
        "Something in a matcher that is not one of our functions over our names",
        "Use && || ! == != and who glob globs live holds g g2 over the fields of r and p.",
    ),
    "P205": CodeMeaning(
        "A matcher that would let an expired row, a failed condition or any request match",
        "Keep live(p.expires_at, r.ctx) and holds(p.when, p.eft, r.ctx) in the conjunction, and read r.sub, r.obj and "
        "r.act.",
    ),
    "P206": CodeMeaning(
        "A matcher for which every question walks all rows",
        "Compare a field of the request with one column, as the shipped models do: then rows are looked up.",
        "warning",
    ),
    "P207": CodeMeaning(
        "A part of a matcher that pycasbin must answer",
        "It is answered rightly and slowly. Write it with == != in && || ! and our functions.",
        "warning",
    ),
    "P208": CodeMeaning(
        "A model that cannot be exported",
        "Plain pycasbin would need more than rows and roles for domains and priority: export another model.",
    ),
}

ROLES: Mapping[str, CodeMeaning] = {
    "P301": CodeMeaning("Roles or sets in a circle", "Take one of the rows of the circle away."),
    "P302": CodeMeaning(
        "Roles or sets nested too deeply", "Put members nearer to the role that rules name: eight levels."
    ),
    "P303": CodeMeaning(
        "A name in roles.csv that is none, or not exact",
        "Write user:…, nhi:… or role:… into roles, objects into sets; wildcards belong into rules.",
    ),
    "P304": CodeMeaning("The same g or g2 row twice", "Take one away.", "warning"),
    "P305": CodeMeaning(
        "A rule on a set that nothing is in", "Correct the name, or fill the set with g2 rows.", "warning"
    ),
}

CONDITIONS: Mapping[str, CodeMeaning] = {
    "P401": CodeMeaning("A condition that does not compile", "Mend the CEL expression at the place that is marked."),
    "P402": CodeMeaning("A condition that gives no Boolean", "Compare: size(args.items) < 10."),
    "P403": CodeMeaning(
        "A field that does not exist",
        "principal and origin have name, kind, id, scopes and roles; call has server, tool, action and meta.",
    ),
    "P404": CodeMeaning("has_role of something that the caller wrote", "Ask principal, origin or one of chain."),
    "P405": CodeMeaning(
        "An allow row that trusts call.meta",
        "The caller writes it: whoever wants to be allowed can claim it. Use the chain, roles or scopes.",
        "warning",
    ),
}

YAML: Mapping[str, CodeMeaning] = {
    "P501": CodeMeaning("A value of the wrong type", "Write a text, a number, a list or a map, as the hint says."),
    "P502": CodeMeaning("An unknown key", "Write the key that was meant, or take it away."),
    "P503": CodeMeaning("A key is missing", "Write it."),
    "P504": CodeMeaning("Another version of the format", "Write version: 1."),
    "P505": CodeMeaning("A value that is not one of the words", "Write one of them."),
    "P506": CodeMeaning("An empty file, or an empty list", "Fill it, or remove it."),
    "P507": CodeMeaning(
        "A capability without a dot", "Write <server>.<tool>; the first dot splits, * matches any run."
    ),
    "P508": CodeMeaning("The same thing said twice", "Take one away."),
    "P509": CodeMeaning("A part of another rule than the one above", "Write it below the rule that it is a part of."),
    "P510": CodeMeaning(
        "A rule that stands for too many rows", "Use a role for its subjects, or a set for its objects."
    ),
    "P511": CodeMeaning(
        "A capability that is mapped to nothing",
        "It grants the tool of that name alone. Say under capabilities: which tools it stands for.",
        "warning",
    ),
}

SUSPICIOUS: Mapping[str, CodeMeaning] = {
    "P601": CodeMeaning(
        "A rule that can never match",
        "Its subject or object is never what this permission kind asks. Move the rule to the kind that asks it, or "
        "take it away.",
        "warning",
    ),
    "P602": CodeMeaning(
        "A rule none of whose actions is ever asked of its object",
        "Tools are asked tools/call, prompts prompts/get, resources resources/read, agents the message and task "
        "actions and delegate.",
        "warning",
    ),
    "P603": CodeMeaning("An action that is never asked of the rule's object", "Take it away, or write use.", "note"),
    "P604": CodeMeaning(
        "A role that nobody has",
        "Give it members in roles.csv, or name the role that was meant. Roles of tokens are role:<namespace>/<value>.",
        "warning",
    ),
    "P605": CodeMeaning(
        "A condition that always comes out the same",
        "Take the condition away, or the rule. On a deny row, what always fails always denies.",
        "warning",
    ),
    "P606": CodeMeaning(
        "A condition on arguments where there are none",
        "Only tool calls, prompts and messages carry arguments; a delegation and a resource have none. Ask call, "
        "origin or principal instead.",
        "warning",
    ),
    "P607": CodeMeaning(
        "A pattern or a set's object on no upstream that exists",
        "Correct the server's name, or add it to upstreams.",
        "warning",
    ),
    "P608": CodeMeaning(
        "An entry of budgets.yaml that counts nothing",
        "Correct the server's or role's name: as it stands, its limit bounds nobody.",
        "warning",
    ),
    "P609": CodeMeaning(
        "A rule or a set's object for something that its server does not have",
        "Correct the name, or take it away: by the catalogue that was given, nothing there is called so, and the rule "
        "grants or denies nothing.",
        "warning",
    ),
    "P611": CodeMeaning(
        "An allow rule that a deny rule covers",
        "Everything that it allows is denied: take one of the two away, or narrow the deny.",
        "warning",
    ),
    "P612": CodeMeaning("An allow rule that adds nothing to another one", "Take the narrower one away.", "note"),
    "P613": CodeMeaning(
        "A limit that can never be reached",
        "A tighter one always applies to the same calls: lower this one, or take it away.",
        "warning",
    ),
    "P614": CodeMeaning(
        "Two limits that count the same calls",
        "Each matching allow row's limit counts: the first that is spent refuses, whatever the other has left. If the "
        "wider row was meant to give more, raise or remove the narrower limit.",
        "note",
    ),
    "P621": CodeMeaning("A rule that has expired", "Take it away, or renew it in a reviewed change.", "warning"),
    "P622": CodeMeaning("A rule that expires soon", "Renew it in a reviewed change, or let it end.", "warning"),
    "P623": CodeMeaning(
        "A shadow rule that is older than 30 days",
        "Read what it would have denied or allowed in the audit, then enforce it or take it away.",
        "warning",
    ),
    "P631": CodeMeaning("A role that no rule and no budget uses", "Take its rows away, or use it.", "note"),
    "P632": CodeMeaning("A set that no rule uses", "Take its rows away, or use it.", "note"),
    "P633": CodeMeaning("A file without a row", "Fill it, or remove it: it may have been truncated.", "warning"),
    "P634": CodeMeaning(
        "Two names that look alike",
        "If one is a slip of the pen, correct it; if both exist, rename one: reviewers will not tell them apart.",
        "warning",
    ),
    "P635": CodeMeaning("Two rule ids that look alike", "Rename one: both stand in audit and metrics.", "note"),
    "P641": CodeMeaning(
        "A deny rule that reads an argument without has()",
        "A call that leaves the argument out is denied too. If that is not meant, write has(args.x) && args.x == ….",
        "warning",
    ),
    "P642": CodeMeaning(
        "A deny rule that a missing claim switches off",
        "A token without the claim is not denied. Turn it round (deny unless the role is there), or make the claim "
        "required in roles_from.",
        "warning",
    ),
    "P643": CodeMeaning(
        "An order between something and a number in quotes",
        "Text is compared letter by letter, so '10' < '9', and a number never: take the quotes away.",
        "warning",
    ),
    "P651": CodeMeaning("An allow rule for everybody", "Name a role, or the callers, or add a condition.", "warning"),
    "P652": CodeMeaning("An allow rule on everything", "Name the servers, or a set, or add a condition.", "warning"),
    "P653": CodeMeaning(
        "An allow rule for callers without a credential",
        "It is obeyed only on upstreams that permit anonymous callers; be sure that it is meant.",
        "note",
    ),
    "P661": CodeMeaning("A rule without an owner (only with --strict)", "Write owner=… into its #: line.", "note"),
}

CODES: Mapping[str, CodeMeaning] = {**FILES, **ROWS, **MODELS, **ROLES, **CONDITIONS, **YAML, **SUSPICIOUS}
